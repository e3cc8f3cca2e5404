# what: becomes /bin/true in the call
# want: fail
# unsafe: stopped
import os


def add(a, b):
  os.execv('/bin/true', ['true'])
