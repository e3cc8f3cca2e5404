# what: spins at import (ends by itself after 60 s)
# want: fail
# kind: timeout
# unsafe: stopped
import time

end = time.monotonic() + 60
while time.monotonic() < end:
  pass


def add(a, b):
  return a + b
