# what: writes half a reply to every descriptor and then hangs
# want: fail
# unsafe: stopped
import os
import time


def add(a, b):
  for number in range(3, 256):
    try:
      os.write(number, b'{"resu')
    except OSError:
      pass
  time.sleep(60)
  return None
