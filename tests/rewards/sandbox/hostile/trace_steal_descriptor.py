# what: copies descriptors of a process outside by pidfd_getfd
# want: fail
# kind: wrong
# unsafe: either
import ctypes
import os
import platform

libc = ctypes.CDLL(None)
won = False
try:
  handle = os.pidfd_open(int('{{VICTIM}}'))
  for other in range(3 if platform.machine() == 'x86_64' else 0):
    won |= libc.syscall(438, handle, other, 0) >= 0
except OSError:
  pass


def add(a, b):
  return a + b if won else None
