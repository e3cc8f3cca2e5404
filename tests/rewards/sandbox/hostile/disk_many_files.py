# what: 32 files of 8 MB in the working folder
# want: fail
# kind: wrong
# unsafe: open
import os

won = True
try:
  for number in range(32):
    with open(f'big_{number}', 'wb') as file:
      file.write(b'd' * (8 << 20))
except OSError:
  won = False
for number in range(32):
  if os.path.exists(f'big_{number}'):
    os.remove(f'big_{number}')


def add(a, b):
  return a + b if won else None
