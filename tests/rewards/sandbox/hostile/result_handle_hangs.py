# what: an object each of whose methods sleeps for a minute
# want: fail
# unsafe: stopped
import time


class Slow:
  def __eq__(self, other):
    time.sleep(60)
    return True

  def __getattr__(self, name):
    time.sleep(60)

  def __repr__(self):
    time.sleep(60)
    return '3'

  __bool__ = __len__ = __hash__ = __repr__


def add(a, b):
  return Slow()
