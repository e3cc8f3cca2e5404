# what: patches the type of int in C so that any comparison is true
# want: fail
# unsafe: stopped
import ctypes

value = 3
address = id(value) + ctypes.sizeof(ctypes.c_ssize_t) * 3
for number in range(-5, 20):
  place = id(number) + ctypes.sizeof(ctypes.c_ssize_t) * 3
  ctypes.memmove(place, address, 4)


def add(a, b):
  return 7
