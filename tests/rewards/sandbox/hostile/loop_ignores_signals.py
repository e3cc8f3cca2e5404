# what: ignores SIGTERM, SIGXCPU, SIGALRM and the rest, and spins
# want: fail
# kind: timeout
# unsafe: stopped
import signal
import time

for number in range(1, 65):
  try:
    signal.signal(number, signal.SIG_IGN)
  except (OSError, ValueError):
    pass
end = time.monotonic() + 60
while time.monotonic() < end:
  pass


def add(a, b):
  return a + b
