# what: sleeps at import, no processor time spent
# want: fail
# kind: timeout
# unsafe: stopped
import time

time.sleep(60)


def add(a, b):
  return a + b
