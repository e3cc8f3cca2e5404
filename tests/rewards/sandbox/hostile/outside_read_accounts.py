# what: looks in /etc, /var, /run and /srv for what a host has
# want: fail
# kind: wrong
# unsafe: open
won = False
for path in (
  '/etc/shadow',
  '/etc/hostname',
  '/etc/machine-id',
  '/etc/resolv.conf',
  '/var/lib/dpkg/status',
  '/run/secrets/kubernetes.io/serviceaccount/token',
  '/var/run/docker.sock',
):
  try:
    with open(path, 'rb') as file:
      won |= bool(file.read(1))
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
