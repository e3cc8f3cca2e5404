# what: leaves 500 dead children that nobody waits for
# want: some
# unsafe: either
import os

for _ in range(500):
  try:
    if os.fork() == 0:
      os._exit(0)
  except OSError:
    break


def add(a, b):
  return a + b
