# what: locks 256 MB in memory
# want: some
# unsafe: either
import ctypes

libc = ctypes.CDLL(None)
try:
  block = ctypes.create_string_buffer(256 << 20)
  libc.mlock(block, ctypes.c_size_t(256 << 20))
  libc.mlockall(3)
except MemoryError:
  pass


def add(a, b):
  return a + b
