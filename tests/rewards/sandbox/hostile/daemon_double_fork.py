# what: a double-forked daemon in a session of its own writes outside later
# want: some
# unsafe: open
import os
import time

if os.fork() == 0:
  os.setsid()
  if os.fork() == 0:
    for _ in range(20):
      time.sleep(1)
      try:
        with open('{{DROP}}/daemon', 'a') as file:
          file.write('alive\n')
      except OSError:
        pass
  os._exit(0)


def add(a, b):
  return a + b
