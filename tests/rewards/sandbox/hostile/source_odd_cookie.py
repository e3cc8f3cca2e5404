# what: a cookie of coding: no-such-codec
# want: some
# compiles: no
# unsafe: stopped


def add(a, b):
  return a + b
