# what: changes the priority of others and raises its own
# want: fail
# kind: wrong
# unsafe: open
import os

won = False
try:
  os.setpriority(os.PRIO_PROCESS, int('{{VICTIM}}'), 19)
  won = True
except OSError:
  pass
for action in (
  lambda: os.nice(-20),
  lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99)),
):
  try:
    action()
    won = True
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
