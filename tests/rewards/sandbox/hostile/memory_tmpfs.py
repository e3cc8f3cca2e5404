# what: fills /tmp and /dev/shm with files of 8 MB, 512 MB each
# want: fail
# kind: wrong
# unsafe: open
import os

block = b't' * (8 << 20)


def fill(folder):
  names = [f'{folder}/fill_{os.getpid()}_{k}' for k in range(64)]
  try:
    for name in names:
      with open(name, 'wb') as file:
        file.write(block)
    return True
  except OSError:
    return False
  finally:
    for name in names:
      if os.path.exists(name):
        os.remove(name)


won = any([fill('/tmp'), fill('/dev/shm')])


def add(a, b):
  return a + b if won else None
