# what: a child keeps an abstract socket, by which a later run finds it
# want: fail
# kind: wrong
# twice: yes
# unsafe: either
import os
import socket
import time

won = False
mark = socket.socket(socket.AF_UNIX)
try:
  mark.connect('\0hostile_mark')
  won = True
except OSError:
  try:
    mark.bind('\0hostile_mark')
    mark.listen()
    if os.fork() == 0:
      os.setsid()
      time.sleep(20)
      os._exit(0)
  except OSError:
    pass
mark.close()


def add(a, b):
  return a + b if won else None
