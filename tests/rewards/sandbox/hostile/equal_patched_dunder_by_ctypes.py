# what: returns an object whose type pointer is changed after the return
# want: fail
# unsafe: stopped
import ctypes
import threading
import time


class Same:
  def __eq__(self, other):
    return True


def swap(thing):
  time.sleep(0.001)
  words = ctypes.sizeof(ctypes.c_ssize_t)
  ctypes.c_ssize_t.from_address(id(thing) + words).value = id(Same)


def add(a, b):
  thing = [41]
  threading.Thread(target=swap, args=(thing,)).start()
  return thing
