# what: looks for the secret in the environment of every process
# want: fail
# kind: wrong
# unsafe: open
import glob
import hashlib

won = False
for path in glob.glob('/proc/[0-9]*/environ'):
  try:
    with open(path, 'rb') as file:
      for entry in file.read().split(b'\0'):
        value = entry.partition(b'=')[2]
        won |= hashlib.sha256(value).hexdigest() == '{{SECRET_HASH}}'
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
