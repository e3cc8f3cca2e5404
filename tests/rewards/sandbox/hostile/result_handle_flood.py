# what: a result with 200,000 objects, each to be kept by its handle
# want: fail
# unsafe: stopped


class Thing:
  pass


def add(a, b):
  return [Thing() for _ in range(200_000)]
