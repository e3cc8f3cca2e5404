# what: looks for any capability that is left to it
# want: fail
# kind: wrong
# unsafe: either
import ctypes


class Header(ctypes.Structure):
  _fields_ = [('version', ctypes.c_uint32), ('pid', ctypes.c_int)]


head = Header(0x20080522, 0)
data = (ctypes.c_uint32 * 6)()
ctypes.CDLL(None).capget(ctypes.byref(head), data)
won = any(data[k] for k in (0, 1, 3, 4))


def add(a, b):
  return a + b if won else None
