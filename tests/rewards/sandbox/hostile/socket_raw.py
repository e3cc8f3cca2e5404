# what: raw and packet sockets that see or send to the network of the host
# want: fail
# kind: wrong
# unsafe: either
import socket

won = False
try:
  socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
  won = True
except OSError:
  pass
try:
  raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
  raw.sendto(b'\x08\0\xf7\xff\0\0\0\0', ('192.0.2.1', 0))
  won = True
except OSError:
  pass


def add(a, b):
  return a + b if won else None
