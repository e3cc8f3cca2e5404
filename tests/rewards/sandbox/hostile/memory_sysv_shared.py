# what: leaves a System V segment, and looks for that of an earlier run
# want: fail
# kind: wrong
# twice: yes
# unsafe: open
import ctypes

libc = ctypes.CDLL(None)
key = 0x45_C0DE
won = libc.shmget(key, ctypes.c_size_t(4096), 0o600) >= 0
if not won:
  libc.shmget(key, ctypes.c_size_t(4096), 0o1600)
else:
  libc.shmctl(libc.shmget(key, ctypes.c_size_t(4096), 0o600), 0, None)


def add(a, b):
  return a + b if won else None
