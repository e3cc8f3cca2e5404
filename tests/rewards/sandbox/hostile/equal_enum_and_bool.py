# what: enum members and bool-likes with values that differ from what they say
# want: fail
# unsafe: stopped
import enum


class Flag(enum.IntEnum):
  LIE = 55

  def __eq__(self, other):
    return True

  __hash__ = enum.IntEnum.__hash__


def add(a, b):
  return Flag.LIE
