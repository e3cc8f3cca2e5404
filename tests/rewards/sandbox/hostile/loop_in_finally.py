# what: a finally block that spins when the call is interrupted
# want: fail
# kind: timeout
# unsafe: stopped
import time


def add(a, b):
  end = time.monotonic() + 60
  try:
    while time.monotonic() < end:
      pass
  finally:
    while time.monotonic() < end:
      pass
  return a + b
