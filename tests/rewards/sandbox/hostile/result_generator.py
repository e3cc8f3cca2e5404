# what: add yields the answer
# want: fail
# unsafe: stopped


def add(a, b):
  yield a + b
