# what: clears alarm, itimers and the soft processor limit, then spins
# want: fail
# kind: timeout
# unsafe: stopped
import resource
import signal
import time

signal.alarm(0)
for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
  signal.setitimer(which, 0)
soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


def add(a, b):
  end = time.monotonic() + 60
  while time.monotonic() < end:
    pass
  return a + b
