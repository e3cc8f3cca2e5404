# what: sys.exit(0) in the call
# want: fail
# unsafe: stopped
import sys


def add(a, b):
  sys.exit(0)
