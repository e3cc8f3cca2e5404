# what: deletes the function again
# want: fail
# unsafe: stopped


def add(a, b):
  return a + b


del add
