# what: recursion in a thread with a stack of 64 KB and no limit
# want: fail
# unsafe: stopped
import sys
import threading

sys.setrecursionlimit(10**7)
threading.stack_size(65536)


def dive(value):
  return sorted([value], key=dive)


thread = threading.Thread(target=dive, args=(1,))
thread.start()
thread.join()


def add(a, b):
  return None
