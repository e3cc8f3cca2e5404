# what: the parent exits with 0 in the call, its child goes on and answers
# want: some
# unsafe: either
import os


def add(a, b):
  if os.fork():
    os._exit(0)
  return a + b
