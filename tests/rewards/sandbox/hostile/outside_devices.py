# what: opens devices of the host, and makes nodes of its own to read
# want: fail
# kind: wrong
# unsafe: either
import glob
import os

won = False
paths = ['/dev/mem', '/dev/kmsg', '/dev/kvm', '/dev/fuse', '/dev/net/tun']
paths += glob.glob('/dev/sd*') + glob.glob('/dev/vd*') + glob.glob('/dev/nv*')
for number, device in enumerate([(1, 1), (8, 0), (254, 0), (259, 0)]):
  try:
    os.mknod(f'node_{number}', 0o60600, os.makedev(*device))
    paths.append(f'node_{number}')
  except OSError:
    pass
for path in paths:
  try:
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    won = True
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
