# what: ignores SIGTERM and sends it to its group in every call
# want: some
# unsafe: stopped
import os
import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)


def add(a, b):
  os.killpg(0, signal.SIGTERM)
  return a + b
