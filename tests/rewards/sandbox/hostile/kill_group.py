# what: kills its whole process group
# want: fail
# unsafe: stopped
import os
import signal

os.killpg(0, signal.SIGKILL)


def add(a, b):
  return None
