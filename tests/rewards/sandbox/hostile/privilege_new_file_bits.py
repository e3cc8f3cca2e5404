# what: leaves a script with the setuid bit outside
# want: fail
# kind: wrong
# unsafe: open
import os

won = False
try:
  with open('{{DROP}}/raised', 'w') as file:
    file.write('#!/bin/sh\nid\n')
  os.chmod('{{DROP}}/raised', 0o6755)
  won = True
except OSError:
  pass


def add(a, b):
  return a + b if won else None
