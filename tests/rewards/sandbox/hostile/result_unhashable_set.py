# what: a frozen set and dict whose members cannot be hashed elsewhere
# want: fail
# unsafe: stopped


class Row(list):
  def __hash__(self):
    return 1


class Same(tuple):
  def __hash__(self):
    return id(self)

  def __eq__(self, other):
    return self is other


def add(a, b):
  return {Row([1]), Row([2]), Same((3,))} if a == 1 else {Row([0]): a}
