# what: sets an alarm of its own and a handler, and clears them
# want: pass
# kind: correct
# unsafe: stopped
import signal


def late(number, frame):
  raise TimeoutError


def add(a, b):
  signal.signal(signal.SIGALRM, late)
  signal.alarm(5)
  try:
    return a + b
  finally:
    signal.alarm(0)
