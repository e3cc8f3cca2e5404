# what: returns modules, frames, code, files, types and memory views
# want: fail
# unsafe: stopped
import sys


def add(a, b):
  return {
    1: sys,
    -5: sys._getframe(),
    'a': add.__code__,
    0.5: memoryview(b'3'),
  }.get(a, open('/dev/null'))
