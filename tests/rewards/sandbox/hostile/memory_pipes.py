# what: fills the buffers of as many pipes as it may open
# want: some
# unsafe: stopped
import os

try:
  for _ in range(2000):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.write(writer, b'q' * 65536)
except OSError:
  pass


def add(a, b):
  return a + b
