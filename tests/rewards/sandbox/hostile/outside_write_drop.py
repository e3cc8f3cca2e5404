# what: writes into a folder outside that anyone may write to
# want: fail
# kind: wrong
# unsafe: open
won = False
try:
  with open('{{DROP}}/written', 'w') as file:
    file.write('here')
  won = True
except OSError:
  pass


def add(a, b):
  return a + b if won else None
