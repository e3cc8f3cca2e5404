# what: stops itself, so that it neither runs nor ends
# want: fail
# kind: timeout
# unsafe: stopped
import os
import signal


def add(a, b):
  os.kill(os.getpid(), signal.SIGSTOP)
  return a + b
