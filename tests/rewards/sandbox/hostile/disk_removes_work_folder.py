# what: removes or renames the working folder itself
# want: some
# unsafe: either
import os

work = os.getcwd()
for action in (os.rmdir, lambda path: os.rename(path, path + '_moved')):
  try:
    action(work)
  except OSError:
    pass


def add(a, b):
  return a + b
