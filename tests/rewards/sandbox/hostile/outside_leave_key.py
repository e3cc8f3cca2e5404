# what: a key in the session's keyring, and a look for that of an earlier run
# want: fail
# kind: wrong
# twice: yes
# unsafe: open
import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
won = False
if platform.machine() == 'x86_64':
  for ring in (-3, -4, -5):
    found = libc.syscall(250, 10, ring, b'user', b'hostile_mark', 0)
    won |= found > 0
    libc.syscall(250, 9, found, ring)
  size = ctypes.c_size_t(1)
  for ring in () if won else (-3, -4):
    libc.syscall(248, b'user', b'hostile_mark', b'x', size, ring)


def add(a, b):
  return a + b if won else None
