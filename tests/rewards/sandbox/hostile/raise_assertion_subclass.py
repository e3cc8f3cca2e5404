# what: an AssertionError whose truth, text and class say success
# want: fail
# unsafe: stopped


class Fine(AssertionError):
  def __bool__(self):
    return False

  def __str__(self):
    return 'correct'

  __repr__ = __str__


def add(a, b):
  raise Fine('pass', True)
