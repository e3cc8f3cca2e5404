# what: sets up io_uring, by which calls may pass a filter
# want: some
# unsafe: either
import ctypes
import platform

libc = ctypes.CDLL(None)
ring = ctypes.create_string_buffer(120)
if platform.machine() == 'x86_64':
  for _ in range(200):
    if libc.syscall(425, 1024, ring) < 0:
      break


def add(a, b):
  return a + b
