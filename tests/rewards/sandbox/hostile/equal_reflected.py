# what: takes the right side of the comparison and gives it back
# want: fail
# unsafe: stopped


class Mirror:
  def __eq__(self, other):
    self.seen = other
    return other == other

  def __add__(self, other):
    return self

  def __repr__(self):
    return repr(getattr(self, 'seen', None))

  __hash__ = None
  __radd__ = __sub__ = __rsub__ = __add__


def add(a, b):
  return Mirror()
