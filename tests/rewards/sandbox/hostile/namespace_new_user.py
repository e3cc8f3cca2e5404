# what: makes a new user namespace and becomes root in it
# want: some
# unsafe: either
import ctypes
import os

libc = ctypes.CDLL(None)
if os.fork() == 0:
  libc.unshare(0x10000000)
  libc.unshare(0x7E020000)
  libc.setuid(0)
  os._exit(0)
os.wait()


def add(a, b):
  return a + b
