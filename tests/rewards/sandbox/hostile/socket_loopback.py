# what: talks to a port of the host on 127.0.0.1
# want: fail
# kind: wrong
# unsafe: open
import socket

won = False
for host in ('127.0.0.1', 'localhost', '0.0.0.0', '::ffff:127.0.0.1'):
  try:
    with socket.create_connection((host, int('{{PORT}}')), timeout=1) as link:
      won |= link.recv(16) == b'hello'
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
