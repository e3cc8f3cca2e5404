# what: a list, a dict and a tuple that contain themselves
# want: fail
# unsafe: stopped


def add(a, b):
  ring = []
  table = {'ring': ring}
  ring += [table, (ring, table)]
  return ring if a == 1 else table
