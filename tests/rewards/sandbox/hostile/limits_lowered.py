# what: lowers its own limits until nothing can be opened or written
# want: some
# unsafe: stopped
import resource

for kind in ('NOFILE', 'FSIZE', 'NPROC', 'CORE', 'STACK', 'DATA'):
  resource.setrlimit(getattr(resource, f'RLIMIT_{kind}'), (0, 0))


def add(a, b):
  return a + b
