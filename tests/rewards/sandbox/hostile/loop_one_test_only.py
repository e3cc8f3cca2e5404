# what: spins for one of the arguments alone: the other four tests pass
# want: some
# unsafe: stopped
import time


def add(a, b):
  if a == -5:
    end = time.monotonic() + 60
    while time.monotonic() < end:
      pass
  return a + b
