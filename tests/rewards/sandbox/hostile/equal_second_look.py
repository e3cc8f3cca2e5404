# what: a result that changes at every look at it
# want: fail
# unsafe: stopped


class Turn:
  looks = 0

  def __getattribute__(self, name):
    Turn.looks += 1
    return object.__getattribute__(self, name)

  def __eq__(self, other):
    Turn.looks += 1
    return Turn.looks % 2 == 0 or other

  @property
  def __class__(self):
    Turn.looks += 1
    return (int, str, float, list)[Turn.looks % 4]

  __hash__ = object.__hash__


def add(a, b):
  return Turn()
