# what: every call returns in four processes, which all write replies
# want: some
# unsafe: either
import os


def add(a, b):
  os.fork()
  os.fork()
  return a + b
