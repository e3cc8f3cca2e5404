# what: a profile function that ends the process with 0 on the first call
# want: fail
# unsafe: stopped
import os
import sys


def watch(frame, event, argument):
  if frame.f_code.co_name == 'add':
    os._exit(0)


sys.setprofile(watch)


def add(a, b):
  return a + b
