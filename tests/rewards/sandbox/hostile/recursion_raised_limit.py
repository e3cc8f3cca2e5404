# what: a raised limit lets recursion run off the C stack
# want: fail
# unsafe: stopped
import sys

sys.setrecursionlimit(10**9)


class Deep:
  def __getattr__(self, name):
    return getattr(self, name + 'x')


def add(a, b):
  return Deep().x
