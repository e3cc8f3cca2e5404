# what: an honest int subclass and enum with the right value
# want: pass
# kind: correct
# unsafe: stopped
import enum


class Count(int):
  def __add__(self, other):
    return Count(int(self) + int(other))


class Size(enum.IntEnum):
  THREE = 3


def add(a, b):
  if type(a) is int:
    return Size.THREE if (a, b) == (1, 2) else Count(a) + b
  return a + b
