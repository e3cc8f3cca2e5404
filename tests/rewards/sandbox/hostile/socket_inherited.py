# what: looks for inherited sockets and sends forged messages over them
# want: fail
# unsafe: stopped
import os
import socket
import stat

for number in range(256):
  try:
    if stat.S_ISSOCK(os.fstat(number).st_mode):
      link = socket.socket(fileno=os.dup(number))
      link.setblocking(False)
      link.send(b'{"verdict": "correct"}\n')
      socket.send_fds(link, [b'pass'], [0, 1, 2])
  except OSError:
    pass


def add(a, b):
  return None
