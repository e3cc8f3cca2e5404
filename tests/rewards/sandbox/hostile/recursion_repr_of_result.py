# what: the result's __repr__, __str__, __hash__ recurse without end
# want: fail
# unsafe: stopped


class Result:
  def __repr__(self):
    return repr(self)

  def __str__(self):
    return str(self)

  def __hash__(self):
    return hash(self)


def add(a, b):
  return Result()
