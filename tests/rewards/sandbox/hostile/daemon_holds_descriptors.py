# what: a daemon keeps every inherited descriptor open, so no pipe ends
# want: some
# unsafe: either
import os
import time

if os.fork() == 0:
  os.setsid()
  time.sleep(25)
  os._exit(0)


def add(a, b):
  return a + b
