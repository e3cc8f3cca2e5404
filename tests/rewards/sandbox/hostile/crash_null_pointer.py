# what: reads address 0 in every call
# want: fail
# unsafe: stopped
import ctypes


def add(a, b):
  return ctypes.string_at(0)
