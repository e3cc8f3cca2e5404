# what: sleeps 60 s in every call
# want: fail
# kind: timeout
# unsafe: stopped
import time


def add(a, b):
  time.sleep(60)
  return a + b
