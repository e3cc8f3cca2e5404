# what: writes outside through a link that it makes first, of both kinds
# want: fail
# kind: wrong
# unsafe: open
import os

won = False
try:
  os.symlink('{{DROP}}', 'folder')
  with open('folder/by_link', 'w') as file:
    file.write('here')
  won = True
except OSError:
  pass


def add(a, b):
  return a + b if won else None
