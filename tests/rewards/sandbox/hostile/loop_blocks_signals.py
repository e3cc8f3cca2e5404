# what: blocks all signals by pthread_sigmask and sleeps in the call
# want: fail
# kind: timeout
# unsafe: stopped
import signal
import time


def add(a, b):
  signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
  time.sleep(60)
  return a + b
