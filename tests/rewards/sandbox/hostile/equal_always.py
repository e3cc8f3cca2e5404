# what: an object that is equal to all
# want: fail
# unsafe: stopped


class Same:
  def __eq__(self, other):
    return True

  def __ne__(self, other):
    return False

  __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
  __hash__ = object.__hash__


def add(a, b):
  return Same()
