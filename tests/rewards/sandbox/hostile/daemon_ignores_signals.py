# what: a child that ignores all signals it can, in a session of its own
# want: some
# unsafe: either
import os
import signal
import time

if os.fork() == 0:
  for number in range(1, 65):
    try:
      signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
      pass
  os.setsid()
  time.sleep(25)
  os._exit(0)


def add(a, b):
  return a + b
