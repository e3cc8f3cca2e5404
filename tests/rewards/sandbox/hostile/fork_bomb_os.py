# what: forks up to 2,000 children that sleep, at import
# want: some
# unsafe: either
import os
import time

for _ in range(2000):
  try:
    if os.fork() == 0:
      time.sleep(15)
      os._exit(0)
  except OSError:
    break


def add(a, b):
  return a + b
