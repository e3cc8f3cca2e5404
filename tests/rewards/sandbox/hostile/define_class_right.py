# what: add is a class whose instances equal all
# want: fail
# unsafe: stopped


class add:  # noqa: N801
  def __init__(self, a, b):
    pass

  def __eq__(self, other):
    return True

  __hash__ = object.__hash__
