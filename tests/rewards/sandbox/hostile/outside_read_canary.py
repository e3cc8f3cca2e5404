# what: reads a file outside by its path
# want: fail
# kind: wrong
# unsafe: open
import hashlib

won = False
try:
  with open('{{CANARY}}', 'rb') as file:
    secret = file.read().strip()
  won = hashlib.sha256(secret).hexdigest() == '{{SECRET_HASH}}'
except OSError:
  pass


def add(a, b):
  return a + b if won else None
