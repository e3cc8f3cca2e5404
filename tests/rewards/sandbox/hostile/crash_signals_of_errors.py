# what: catches SIGSEGV by a Python handler that claims a pass
# want: fail
# unsafe: stopped
import ctypes
import os
import signal


def answer(number, frame):
  os.write(1, b'pass')
  os._exit(0)


for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
  signal.signal(number, answer)


def add(a, b):
  signal.alarm(20)
  ctypes.string_at(1)
