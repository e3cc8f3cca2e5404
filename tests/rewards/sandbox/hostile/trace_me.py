# what: asks to be traced, so that each signal stops it
# want: some
# unsafe: stopped
import ctypes
import os
import signal

ctypes.CDLL(None).ptrace(0, 0, None, None)


def add(a, b):
  os.kill(os.getpid(), signal.SIGUSR1)
  return a + b
