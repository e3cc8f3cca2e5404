# what: sets the host's name (to what it is) and its clock
# want: fail
# kind: wrong
# unsafe: either
import socket
import time

won = False
for action in (
  lambda: socket.sethostname(socket.gethostname()),
  lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()),
):
  try:
    action()
    won = True
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
