# what: writes 4 GB to standard error at import
# want: fail
# unsafe: stopped
import os

block = b'e' * 65536
for _ in range(65536):
  os.write(2, block)


def add(a, b):
  return None
