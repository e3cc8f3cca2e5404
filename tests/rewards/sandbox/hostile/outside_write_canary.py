# what: appends to a file outside
# want: fail
# kind: wrong
# unsafe: open
won = False
try:
  with open('{{CANARY}}', 'a') as file:
    file.write('\nchanged')
  won = True
except OSError:
  pass


def add(a, b):
  return a + b if won else None
