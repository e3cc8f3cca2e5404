# what: folders without rights and a umask of 777 against the clean-up
# want: some
# unsafe: either
import os

try:
  os.makedirs('locked/inner')
  open('locked/inner/file', 'w').close()
  os.chmod('locked/inner', 0)
  os.chmod('locked', 0)
  os.umask(0o777)
  os.chmod('.', 0)
except OSError:
  pass


def add(a, b):
  return a + b
