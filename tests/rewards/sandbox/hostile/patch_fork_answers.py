# what: os.fork says that it is the child, so no test has its own process
# want: some
# unsafe: stopped
import os

os.fork = lambda: 0


def add(a, b):
  return a + b
