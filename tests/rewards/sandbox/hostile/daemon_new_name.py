# what: a daemon renames itself by prctl and clears its death signal
# want: some
# unsafe: either
import ctypes
import os
import time

if os.fork() == 0:
  libc = ctypes.CDLL(None)
  libc.prctl(1, 0)
  libc.prctl(15, b'kworker/0:1')
  libc.prctl(36, 1)
  os.setsid()
  time.sleep(25)
  os._exit(0)


def add(a, b):
  return a + b
