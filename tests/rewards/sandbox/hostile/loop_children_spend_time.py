# what: children spin, so that the processor time is not the program's own
# want: some
# unsafe: stopped
import os
import time

for _ in range(8):
  try:
    if os.fork() == 0:
      end = time.monotonic() + 30
      while time.monotonic() < end:
        pass
      os._exit(0)
  except OSError:
    break


def add(a, b):
  return a + b
