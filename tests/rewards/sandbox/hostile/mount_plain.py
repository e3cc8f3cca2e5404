# what: mounts a tmpfs without a namespace of its own (and unmounts it)
# want: fail
# kind: wrong
# unsafe: either
import ctypes
import os

libc = ctypes.CDLL(None)
os.makedirs('point', exist_ok=True)
won = libc.mount(b'tmpfs', b'point', b'tmpfs', 0, None) == 0
if won:
  libc.umount2(b'point', 2)


def add(a, b):
  return a + b if won else None
