# what: closes every descriptor at import
# want: fail
# unsafe: stopped
import os

os.closerange(0, 4096)


def add(a, b):
  return None
