# what: spins in an atexit hook, after right answers
# want: some
# unsafe: stopped
import atexit
import time


@atexit.register
def spin():
  end = time.monotonic() + 60
  while time.monotonic() < end:
    pass


def add(a, b):
  return a + b
