# what: resolves names by the system and by a packet of its own
# want: fail
# kind: wrong
# unsafe: either
import socket

won = False
try:
  won = bool(socket.getaddrinfo('example.com', 80))
except OSError:
  pass
query = b'\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x01\0\x01'
for server in ('1.1.1.1', '8.8.8.8', '127.0.0.53'):
  try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
      link.settimeout(0.5)
      link.sendto(query, (server, 53))
      won |= bool(link.recv(512))
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
