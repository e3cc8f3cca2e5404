# what: every call leaves a daemon that respawns itself 20 times
# want: some
# unsafe: either
import os
import time


def add(a, b):
  if os.fork() == 0:
    os.setsid()
    for _ in range(20):
      if os.fork():
        os._exit(0)
      time.sleep(1)
    os._exit(0)
  return a + b
