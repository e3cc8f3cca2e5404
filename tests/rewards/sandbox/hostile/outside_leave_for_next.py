# what: leaves marks in shared places, and looks for those of an earlier run
# want: fail
# kind: wrong
# twice: yes
# unsafe: open
import os

won = False
for folder in ('/tmp', '/var/tmp', '/dev/shm', '/run', '.', '/dev/mqueue'):
  mark = folder + '/hostile_mark_of_the_first'
  try:
    if os.path.exists(mark):
      won = True
      os.remove(mark)
    else:
      open(mark, 'w').close()
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
