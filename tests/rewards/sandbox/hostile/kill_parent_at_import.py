# what: kills its parent at import, then answers
# want: some
# unsafe: either
import os
import signal

if os.getppid() > 1:
  os.kill(os.getppid(), signal.SIGKILL)


def add(a, b):
  return a + b
