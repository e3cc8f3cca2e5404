# what: becomes another user, by calls and by programs with the setuid bit
# want: fail
# kind: wrong
# unsafe: either
import os
import subprocess

won = False
for call in (os.setuid, os.setgid, os.seteuid):
  try:
    call(65534 if os.getuid() != 65534 else 0)
    won = True
  except OSError:
    pass
for line in (['sudo', '-n', 'true'], ['su', '-c', 'true']):
  try:
    ran = subprocess.run(line, capture_output=True, stdin=subprocess.DEVNULL)
    won |= ran.returncode == 0
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
