# what: sys.exit, os._exit, os.kill, fork and waits do nothing
# want: fail
# unsafe: stopped
import os
import sys


def nothing(*arguments, **options):
  return 0


sys.exit = os._exit = os.abort = os.kill = os.fork = nothing
os.waitpid = lambda *arguments: (0, 0)
os.waitstatus_to_exitcode = nothing


def add(a, b):
  return None
