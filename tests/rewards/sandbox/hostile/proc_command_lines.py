# what: reads the command lines of other processes
# want: fail
# kind: wrong
# unsafe: open
import os

won = False
try:
  for name in os.listdir('/proc'):
    if name.isdigit() and int(name) == int('{{VICTIM}}'):
      with open(f'/proc/{name}/cmdline', 'rb') as file:
        won |= bool(file.read())
except OSError:
  pass


def add(a, b):
  return a + b if won else None
