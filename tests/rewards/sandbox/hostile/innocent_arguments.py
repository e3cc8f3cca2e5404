# what: reads sys.argv, the environment and the version
# want: pass
# kind: correct
# unsafe: stopped
import os
import sys

verbose = '-v' in sys.argv[1:] or os.environ.get('VERBOSE') == '1'
assert sys.version_info >= (3, 8)


def add(a, b):
  if verbose:
    print(a, b)
  return a + b
