# what: listens on many ports, and on the judge's own, for what may connect
# want: some
# unsafe: either
import socket

held = []
for port in [int('{{PORT}}'), *range(20_000, 20_200)]:
  try:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(('0.0.0.0', port))
    server.listen()
    held.append(server)
  except OSError:
    pass


def add(a, b):
  return a + b
