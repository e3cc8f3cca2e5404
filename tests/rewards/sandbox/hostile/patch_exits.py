# what: sys.exit, os._exit, os.kill, fork and waits do nothing (for 10 s)
# want: fail
# unsafe: stopped
import os
import sys
import time

end, leave = time.monotonic() + 10, os._exit


def nothing(*arguments, **options):
  if time.monotonic() > end:
    leave(1)
  return 0


sys.exit = os._exit = os.abort = os.kill = os.fork = nothing
os.waitpid = lambda *arguments: (0, 0)
os.waitstatus_to_exitcode = nothing


def add(a, b):
  return None
