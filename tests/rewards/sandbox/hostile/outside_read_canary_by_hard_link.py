# what: hard-links a file outside into the working folder
# want: fail
# kind: wrong
# unsafe: either
import hashlib
import os

won = False
try:
  os.link('{{CANARY}}', 'mine')
  with open('mine', 'rb') as file:
    digest = hashlib.sha256(file.read().strip()).hexdigest()
  won = digest == '{{SECRET_HASH}}'
except OSError:
  pass


def add(a, b):
  return a + b if won else None
