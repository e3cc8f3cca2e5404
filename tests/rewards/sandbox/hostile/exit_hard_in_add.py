# what: os._exit(0) in the call
# want: fail
# unsafe: stopped
import os


def add(a, b):
  os._exit(0)
