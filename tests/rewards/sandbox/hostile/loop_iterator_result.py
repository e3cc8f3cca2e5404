# what: returns an endless generator, which must not be drained
# want: fail
# unsafe: stopped
import itertools


def add(a, b):
  return (value for value in itertools.count(1000))
