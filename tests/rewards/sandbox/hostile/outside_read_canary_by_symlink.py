# what: reads a file outside through symbolic links in the working folder
# want: fail
# kind: wrong
# unsafe: open
import hashlib
import os

won = False
try:
  os.symlink('/', 'top')
  os.symlink('{{CANARY}}', 'link')
  for path in ('link', 'top/{{CANARY}}', './top/../link'):
    with open(path, 'rb') as file:
      digest = hashlib.sha256(file.read().strip()).hexdigest()
    won |= digest == '{{SECRET_HASH}}'
except OSError:
  pass


def add(a, b):
  return a + b if won else None
