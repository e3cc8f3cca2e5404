# what: maps 2 GB of anonymous shared memory and touches it
# want: fail
# unsafe: stopped
import mmap

won = False
try:
  area = mmap.mmap(-1, 2 << 30)
  for offset in range(0, 2 << 30, 1 << 20):
    area[offset] = 1
  won = True
except (OSError, ValueError, MemoryError):
  pass


def add(a, b):
  return a + b if won else None
