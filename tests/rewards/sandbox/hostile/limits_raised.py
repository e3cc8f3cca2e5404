# what: raises its own limits and takes 1 GB
# want: fail
# unsafe: either
import resource

most = resource.RLIM_INFINITY
for kind in ('AS', 'DATA', 'CPU', 'FSIZE', 'NPROC', 'NOFILE', 'STACK'):
  try:
    resource.setrlimit(getattr(resource, f'RLIMIT_{kind}'), (most, most))
  except (OSError, ValueError):
    pass
won = False
try:
  block = bytearray(1 << 30)
  won = True
except MemoryError:
  pass


def add(a, b):
  return a + b if won else None
