# what: every child forks again, 2 ** 9 processes at most
# want: some
# unsafe: either
import os
import time

mine = os.getpid()
for _ in range(9):
  try:
    os.fork()
  except OSError:
    pass
if os.getpid() != mine:
  time.sleep(15)
  os._exit(0)


def add(a, b):
  return a + b
