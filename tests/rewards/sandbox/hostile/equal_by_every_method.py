# what: defines all special methods that compare or convert, all true
# want: fail
# unsafe: stopped


def yes(self, *arguments):
  return True


names = 'eq ne lt le gt ge bool contains instancecheck subclasscheck'.split()
Every = type('Every', (), {f'__{name}__': yes for name in names})
Every.__len__ = Every.__index__ = Every.__int__ = lambda self: 1
Every.__float__ = lambda self: 1.0
Every.__iter__ = lambda self: iter([True])
Every.__hash__ = lambda self: 1


def add(a, b):
  return Every()
