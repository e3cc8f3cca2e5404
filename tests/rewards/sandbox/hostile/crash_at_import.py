# what: reads address 0 at import, with faulthandler on
# want: fail
# unsafe: stopped
import ctypes
import faulthandler

faulthandler.enable()
ctypes.string_at(0)


def add(a, b):
  return a + b
