# what: leaves pipes, sockets and links that block whoever opens them
# want: some
# unsafe: stopped
import os
import socket

try:
  for name in ('result', 'result.json', 'stdout', 'answer', 'output'):
    os.mkfifo(name)
  server = socket.socket(socket.AF_UNIX)
  server.bind('server')
  os.symlink('/dev/zero', 'verdict')
except OSError:
  pass


def add(a, b):
  return a + b
