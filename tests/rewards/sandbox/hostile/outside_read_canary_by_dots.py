# what: climbs out of the working folder with ..
# want: fail
# kind: wrong
# unsafe: open
import hashlib

won = False
for depth in range(1, 24):
  try:
    with open('../' * depth + '{{CANARY}}'.lstrip('/'), 'rb') as file:
      digest = hashlib.sha256(file.read().strip()).hexdigest()
    won |= digest == '{{SECRET_HASH}}'
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
