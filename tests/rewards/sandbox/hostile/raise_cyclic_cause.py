# what: exceptions whose causes form a ring, and a chain of 5,000 contexts
# want: fail
# kind: exception
# unsafe: stopped


def add(a, b):
  first, second = ValueError('first'), KeyError('second')
  first.__cause__, second.__cause__ = second, first
  last = first
  for _ in range(5000):
    after = ValueError('next')
    after.__context__ = last
    last = after
  raise last
