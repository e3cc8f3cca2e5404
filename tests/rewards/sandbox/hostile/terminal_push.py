# what: pushes a command into the terminal of whoever started it (TIOCSTI)
# want: fail
# kind: wrong
# unsafe: either
import fcntl
import os
import termios

won = False
numbers = list(range(10))
try:
  numbers.append(os.open('/dev/tty', os.O_RDWR))
except OSError:
  pass
for number in numbers:
  try:
    fcntl.ioctl(number, termios.TIOCSTI, b'#')
    won = True
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
