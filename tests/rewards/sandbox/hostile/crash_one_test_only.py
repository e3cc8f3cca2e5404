# what: dies for one of the arguments alone: the other four tests pass
# want: some
# unsafe: stopped
import os


def add(a, b):
  if a == 'a':
    os.abort()
  return a + b
