# what: opens pseudo-terminals and takes one as its own
# want: some
# unsafe: stopped
import fcntl
import os
import pty
import termios

try:
  for _ in range(50):
    near, far = pty.openpty()
  os.setsid()
  fcntl.ioctl(far, termios.TIOCSCTTY, 0)
except OSError:
  pass


def add(a, b):
  return a + b
