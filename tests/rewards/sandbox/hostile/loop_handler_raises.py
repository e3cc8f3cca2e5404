# what: handlers of SIGXCPU, SIGALRM, SIGTERM answer for the program
# want: fail
# unsafe: stopped
import os
import signal
import time


def answer(number, frame):
  os.write(1, b'pass\n')
  os._exit(0)


for number in (signal.SIGXCPU, signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
  signal.signal(number, answer)


def add(a, b):
  end = time.monotonic() + 60
  while time.monotonic() < end:
    pass
  return None
