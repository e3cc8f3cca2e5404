# what: 40 children take 100 MB each for 10 s: the limit is a process's own
# want: some
# unsafe: either
import os
import time

for _ in range(40):
  try:
    if os.fork() == 0:
      block = b'p' * (100 << 20)
      time.sleep(10)
      os._exit(0)
  except (OSError, MemoryError):
    os._exit(1)


def add(a, b):
  return a + b
