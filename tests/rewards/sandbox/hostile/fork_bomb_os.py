# what: forks up to 500 children that sleep, at import
# want: some
# unsafe: either
import os
import time

for _ in range(500):
  try:
    if os.fork() == 0:
      time.sleep(10)
      os._exit(0)
  except OSError:
    break


def add(a, b):
  return a + b
