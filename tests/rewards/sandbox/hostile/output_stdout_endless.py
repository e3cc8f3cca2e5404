# what: prints without end (4 GB at most) at import
# want: fail
# unsafe: stopped
import sys

line = 'x' * 65536
for _ in range(65536):
  sys.stdout.write(line)


def add(a, b):
  return None
