# what: attaches to its parent by ptrace and never lets go
# want: some
# unsafe: either
import ctypes
import os

libc = ctypes.CDLL(None)
if os.getppid() > 1:
  libc.ptrace(0x4206, os.getppid(), None, None)
  libc.ptrace(16, os.getppid(), None, None)


def add(a, b):
  return a + b
