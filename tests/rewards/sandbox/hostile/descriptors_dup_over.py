# what: puts /dev/null over every descriptor
# want: some
# unsafe: stopped
import os

null = os.open('/dev/null', os.O_RDWR)
for number in range(256):
  try:
    os.fstat(number)
    os.dup2(null, number)
  except OSError:
    pass


def add(a, b):
  return a + b
