# what: returns a class whose metaclass makes it equal to all and an instance
# want: fail
# unsafe: stopped


class Meta(type):
  def __eq__(cls, other):
    return True

  def __instancecheck__(cls, other):
    return True

  def __subclasscheck__(cls, other):
    return True

  __hash__ = type.__hash__


class Every(metaclass=Meta):
  pass


def add(a, b):
  return Every
