# what: takes a lock twice
# want: fail
# kind: timeout
# unsafe: stopped
import threading

lock = threading.Lock()


def add(a, b):
  lock.acquire()
  lock.acquire(timeout=60)
  return a + b
