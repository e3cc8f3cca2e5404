# what: makes the read-only file system of Python writable
# want: fail
# kind: wrong
# danger: yes
# unsafe: either
import ctypes
import os
import sys

libc = ctypes.CDLL(None)
won = False
if os.getpid() < 300 and not os.path.exists('/proc/self'):
  for folder in ('/', '/usr', sys.prefix, os.path.dirname(os.__file__)):
    won |= libc.mount(b'none', folder.encode(), None, 0x1020, None) == 0


def add(a, b):
  return a + b if won else None
