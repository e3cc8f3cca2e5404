# what: forks 150 children in every call and never waits for them
# want: some
# unsafe: either
import os
import time


def add(a, b):
  for _ in range(150):
    try:
      if os.fork() == 0:
        time.sleep(10)
        os._exit(0)
    except OSError:
      break
  return a + b
