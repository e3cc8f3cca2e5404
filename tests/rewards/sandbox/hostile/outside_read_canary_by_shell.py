# what: reads a file outside through cat, dd, head and base64
# want: fail
# kind: wrong
# unsafe: open
import hashlib
import subprocess

won = False
for tool in (['cat'], ['head', '-c', '999'], ['/bin/busybox', 'cat']):
  try:
    seen = subprocess.run(tool + ['{{CANARY}}'], capture_output=True).stdout
    won |= hashlib.sha256(seen.strip()).hexdigest() == '{{SECRET_HASH}}'
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
