# what: opens the memory of its parent and the victim for writing
# want: fail
# kind: wrong
# unsafe: either
import os

won = False
for number in (os.getppid(), int('{{VICTIM}}')):
  try:
    os.close(os.open(f'/proc/{number}/mem', os.O_RDWR))
    won = True
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
