# what: __eq__ gives an object that is true, callable and equal to all
# want: fail
# unsafe: stopped


class Yes:
  def __eq__(self, other):
    return self

  def __bool__(self):
    return True

  def __call__(self, *arguments):
    return self

  def __getattr__(self, name):
    return self

  __hash__ = object.__hash__
  __sub__ = __rsub__ = __abs__ = __lt__ = __call__


def add(a, b):
  return Yes()
