# what: keeps deleted files of 8 MB open, which no folder listing shows
# want: fail
# kind: wrong
# unsafe: open
import os

held = []
won = True
try:
  for _ in range(32):
    held.append(open('gone', 'wb', buffering=0))
    held[-1].write(b'd' * (8 << 20))
    os.remove('gone')
  won = all(os.fstat(file.fileno()).st_size >= 8 << 20 for file in held)
except OSError:
  won = False


def add(a, b):
  return a + b if won else None
