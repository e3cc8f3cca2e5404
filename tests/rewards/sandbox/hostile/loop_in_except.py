# what: catches whatever ends the loop and loops again
# want: fail
# kind: timeout
# unsafe: stopped
import time

end = time.monotonic() + 60
while time.monotonic() < end:
  try:
    while time.monotonic() < end:
      pass
  except BaseException:
    continue


def add(a, b):
  return a + b
