# what: makes the kernel signal a process outside as a descriptor's owner
# want: fail
# kind: wrong
# unsafe: open
import fcntl
import os
import signal
import socket
import time

won = False
near, far = socket.socketpair()
try:
  fcntl.fcntl(near, fcntl.F_SETOWN, int('{{VICTIM}}'))
  fcntl.fcntl(near, 10, int(signal.SIGKILL))
  fcntl.fcntl(near, fcntl.F_SETFL, os.O_ASYNC)
  far.send(b'x')
  time.sleep(0.2)
  won = fcntl.fcntl(near, fcntl.F_GETOWN) == int('{{VICTIM}}')
except OSError:
  pass


def add(a, b):
  return a + b if won else None
