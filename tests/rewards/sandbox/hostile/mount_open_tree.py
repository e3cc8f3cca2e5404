# what: clones the tree of a folder by open_tree and move_mount
# want: fail
# kind: wrong
# unsafe: either
import ctypes
import os
import platform

libc = ctypes.CDLL(None)
won = False
if platform.machine() == 'x86_64':
  clone = libc.syscall(428, -100, b'/', 1 | os.O_CLOEXEC)
  won = clone >= 0


def add(a, b):
  return a + b if won else None
