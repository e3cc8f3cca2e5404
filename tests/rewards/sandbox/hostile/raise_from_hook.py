# what: replaces sys.excepthook, unraisablehook and displayhook
# want: fail
# kind: exception
# unsafe: stopped
import os
import sys


def hook(*arguments):
  os.write(1, b'pass\n')
  os._exit(0)


sys.excepthook = sys.unraisablehook = sys.displayhook = hook


def add(a, b):
  raise ValueError
