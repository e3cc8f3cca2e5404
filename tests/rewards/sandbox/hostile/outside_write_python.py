# what: writes into the standard library, its caches and a .pth file
# want: fail
# kind: wrong
# unsafe: either
import os
import site
import sys

won = False
folders = [path for path in sys.path if os.path.isdir(path)]
folders += [os.path.dirname(os.__file__), sys.prefix]
folders += site.getsitepackages()
for folder in folders:
  if os.path.abspath(folder) == os.getcwd() or folder.startswith('/tmp'):
    continue
  probe = os.path.join(folder, 'hostile_probe.pth')
  try:
    with open(probe, 'w') as file:
      file.write('# nothing\n')
    won = True
    os.remove(probe)
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
