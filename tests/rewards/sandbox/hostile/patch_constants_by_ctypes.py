# what: makes None and False true in its interpreter by swapping type slots
# want: fail
# unsafe: stopped
import ctypes

words = ctypes.sizeof(ctypes.c_ssize_t)
source = ctypes.c_ssize_t.from_address(id(True) + words)
ctypes.c_ssize_t.from_address(id(None) + words).value = source.value


def add(a, b):
  return None
