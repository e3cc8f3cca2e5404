# what: connects to the usual sockets of daemons and abstract ones
# want: fail
# kind: wrong
# unsafe: either
import glob
import socket

paths = ['/run/docker.sock', '/run/dbus/system_bus_socket', '/dev/log']
paths += ['/run/systemd/private', '\0/tmp/.X11-unix/X0', '/run/nscd/socket']
paths += glob.glob('/tmp/*.sock') + glob.glob('/run/*.sock')
won = False
for path in paths:
  for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    try:
      with socket.socket(socket.AF_UNIX, kind) as link:
        link.settimeout(0.5)
        link.connect(path)
      won = True
    except OSError:
      pass


def add(a, b):
  return a + b if won else None
