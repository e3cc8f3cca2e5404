# what: goes through /proc/PID/root and cwd of every process
# want: fail
# kind: wrong
# unsafe: open
import hashlib
import os

won = False
names = ['self', '1', str(os.getppid()), '{{VICTIM}}', 'thread-self']
for name in names:
  for way in ('root', 'cwd/' + '../' * 20):
    try:
      with open(f'/proc/{name}/{way}/{{CANARY}}', 'rb') as file:
        digest = hashlib.sha256(file.read().strip()).hexdigest()
      won |= digest == '{{SECRET_HASH}}'
    except OSError:
      pass


def add(a, b):
  return a + b if won else None
