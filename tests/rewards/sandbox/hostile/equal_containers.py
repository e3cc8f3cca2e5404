# what: list, tuple, dict and set subclasses equal to all, with iterators
# want: fail
# unsafe: stopped


def make(base):
  class Same(base):
    def __eq__(self, other):
      return True

    def __iter__(self):
      return iter([3, 0])

    def __len__(self):
      return 10**9

    def __reduce__(self):
      return (int, (3,))

    __hash__ = object.__hash__

  return Same()


def add(a, b):
  return {1: make(list), -5: make(dict), 'a': make(tuple)}.get(a, make(set))
