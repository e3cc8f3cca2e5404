# what: kills a process of the same user outside
# want: fail
# kind: wrong
# unsafe: open
import os
import signal

won = False
try:
  os.kill(int('{{VICTIM}}'), signal.SIGKILL)
  won = True
except OSError:
  pass


def add(a, b):
  return a + b if won else None
