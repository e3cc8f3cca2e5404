# what: sends a packet to an address outside, whether or not one answers
# want: fail
# kind: wrong
# unsafe: either
import socket

won = False
for family, address in (
  (socket.AF_INET, '192.0.2.1'),
  (socket.AF_INET6, '2001:db8::1'),
):
  try:
    with socket.socket(family, socket.SOCK_DGRAM) as link:
      link.sendto(b'x', (address, 9))
    won = True
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
