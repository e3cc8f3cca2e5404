# what: opens 10,000 files and duplicates of descriptors
# want: some
# unsafe: stopped
import os

held = []
try:
  for _ in range(10_000):
    held.append(os.open('.', os.O_RDONLY))
except OSError:
  pass


def add(a, b):
  return a + b
