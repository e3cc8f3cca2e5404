# what: lowers the limits of a process outside and of its parent
# want: fail
# kind: wrong
# unsafe: open
import resource

won = False
try:
  pair = resource.prlimit(int('{{VICTIM}}'), resource.RLIMIT_CORE)
  resource.prlimit(int('{{VICTIM}}'), resource.RLIMIT_CORE, pair)
  won = True
except OSError:
  pass


def add(a, b):
  return a + b if won else None
