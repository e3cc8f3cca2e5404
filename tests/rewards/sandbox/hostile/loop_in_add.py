# what: spins in every call
# want: fail
# kind: timeout
# unsafe: stopped
import time


def add(a, b):
  end = time.monotonic() + 60
  while time.monotonic() < end:
    pass
  return a + b
