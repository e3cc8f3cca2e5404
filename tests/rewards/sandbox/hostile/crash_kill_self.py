# what: SIGKILL to itself in every call
# want: fail
# unsafe: stopped
import os
import signal


def add(a, b):
  os.kill(os.getpid(), signal.SIGKILL)
