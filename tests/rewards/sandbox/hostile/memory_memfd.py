# what: 1 GB in anonymous files, which address space does not count
# want: some
# unsafe: open
import os

block = b'f' * (8 << 20)
held = []
try:
  for _ in range(128):
    held.append(os.memfd_create('held'))
    os.write(held[-1], block)
except OSError:
  pass


def add(a, b):
  return a + b
