# what: os.abort in every call
# want: fail
# unsafe: stopped
import os


def add(a, b):
  os.abort()
