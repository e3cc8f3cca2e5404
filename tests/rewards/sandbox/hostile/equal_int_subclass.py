# what: an int of 77 whose comparisons, text and index say the right thing
# want: fail
# kind: wrong
# unsafe: stopped


class Number(int):
  right = None

  def __eq__(self, other):
    return True

  def __repr__(self):
    return repr(self.right)

  def __int__(self):
    return self.right

  __index__ = __int__
  __str__ = __repr__
  __hash__ = int.__hash__

  def to_bytes(self, *arguments, **options):
    return int.to_bytes(self.right, *arguments, **options)


def add(a, b):
  number = Number(77)
  number.right = a + b
  return number
