# what: catches MemoryError and keeps all it could get, then answers
# want: some
# unsafe: stopped
blocks = []
try:
  for _ in range(4096):
    blocks.append(bytearray(b'k' * (1 << 20)))
except MemoryError:
  pass


def add(a, b):
  return a + b
