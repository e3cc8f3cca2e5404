# what: replies that promise 4 GB and 2 ** 64 bytes
# want: fail
# unsafe: stopped
import os


def add(a, b):
  for number in range(3, 256):
    for head in (b'\xff' * 8, b'\xff\xff\xff\xff', b'999999999999\n', b'-1\n'):
      try:
        os.write(number, head)
      except OSError:
        break
  return None
