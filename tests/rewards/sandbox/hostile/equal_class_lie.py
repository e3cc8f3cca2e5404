# what: an object whose __class__ says int, float or str
# want: fail
# unsafe: stopped


class Liar:
  def __init__(self, right):
    self.right = right

  @property
  def __class__(self):
    return type(self.right)

  def __eq__(self, other):
    return True

  __hash__ = object.__hash__


def add(a, b):
  return Liar(a + b)
