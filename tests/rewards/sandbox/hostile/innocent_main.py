# what: a demonstration under __main__
# want: pass
# kind: correct
# unsafe: stopped


def add(a, b):
  """Adds.

  >>> add(1, 2)
  3
  """
  return a + b


if __name__ == '__main__':
  import doctest

  doctest.testmod()
  print('the sum is', add(20, 22))
