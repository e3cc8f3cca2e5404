# what: a sparse file of 8 TB by truncate
# want: fail
# kind: wrong
# unsafe: stopped
won = False
try:
  with open('sparse', 'wb') as file:
    file.truncate(8 << 40)
  won = True
except OSError:
  pass


def add(a, b):
  return a + b if won else None
