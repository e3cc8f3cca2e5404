# what: kills a process outside through a pidfd, its group, and its threads
# want: fail
# kind: wrong
# unsafe: open
import os
import signal

won = False
victim = int('{{VICTIM}}')
for action in (
  lambda: signal.pidfd_send_signal(os.pidfd_open(victim), signal.SIGKILL),
  lambda: os.sched_setaffinity(victim, {0}),
):
  try:
    action()
    won = True
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
