# what: one file of 1 GB, block by block
# want: fail
# unsafe: stopped
import os

won = False
try:
  with open('huge', 'wb') as file:
    for _ in range(256):
      file.write(b'd' * (4 << 20))
  won = os.path.getsize('huge') > 1_000_000_000
except OSError:
  pass


def add(a, b):
  return a + b if won else None
