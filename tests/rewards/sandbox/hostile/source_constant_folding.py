# what: constants that a compiler may compute for long
# want: some
# unsafe: stopped

BIG = 10 ** 10 ** 5, 'x' * 4000 * 4000 * 8, (1 << 60000) * 3


def add(a, b):
  return a + b
