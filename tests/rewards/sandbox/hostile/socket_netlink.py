# what: asks the kernel over netlink for network cards that are not lo
# want: fail
# kind: wrong
# unsafe: either
import socket

won = False
try:
  won = any(name != 'lo' for _, name in socket.if_nameindex())
except OSError:
  pass


def add(a, b):
  return a + b if won else None
