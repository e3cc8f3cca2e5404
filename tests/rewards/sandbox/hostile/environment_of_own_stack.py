# what: reads the environment that its own process started with, from memory
# want: fail
# kind: wrong
# unsafe: stopped
import ctypes
import hashlib

libc = ctypes.CDLL(None)
won = False
entries = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, 'environ')
number = 0
while entries and entries[number]:
  value = entries[number].partition(b'=')[2]
  won |= hashlib.sha256(value).hexdigest() == '{{SECRET_HASH}}'
  number += 1


def add(a, b):
  return a + b if won else None
