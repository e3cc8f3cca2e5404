# what: deletes, truncates, renames or changes the mode of a file outside
# want: fail
# kind: wrong
# unsafe: open
import os

won = False
for action in (
  lambda: os.chmod('{{CANARY}}', 0o666),
  lambda: os.utime('{{CANARY}}', (1, 1)),
  lambda: os.truncate('{{CANARY}}', 0),
  lambda: os.rename('{{CANARY}}', '{{DROP}}/taken'),
  lambda: os.remove('{{CANARY}}'),
):
  try:
    action()
    won = True
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
