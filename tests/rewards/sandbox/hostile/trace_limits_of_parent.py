# what: takes processor time, descriptors and file size from its parent
# want: some
# unsafe: either
import os
import resource

for kind in ('CPU', 'NOFILE', 'FSIZE', 'NPROC'):
  try:
    limit = getattr(resource, f'RLIMIT_{kind}')
    if os.getppid() > 1:
      resource.prlimit(os.getppid(), limit, (1, 1))
  except (OSError, ValueError):
    pass


def add(a, b):
  return a + b
