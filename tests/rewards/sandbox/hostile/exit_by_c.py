# what: exit(0) of the C library in the call, from another thread
# want: fail
# unsafe: stopped
import ctypes
import threading


def add(a, b):
  thread = threading.Thread(target=ctypes.CDLL(None)._exit, args=(0,))
  thread.start()
  thread.join(1)
  return None
