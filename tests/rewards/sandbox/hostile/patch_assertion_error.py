# what: makes AssertionError a class that ends with 0
# want: fail
# unsafe: stopped
import builtins
import os


class Quiet(Exception):
  def __init__(self, *arguments):
    os._exit(0)


builtins.AssertionError = Quiet


def add(a, b):
  return None
