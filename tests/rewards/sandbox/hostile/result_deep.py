# what: a list nested 300,000 deep
# want: fail
# unsafe: stopped


def add(a, b):
  deep = []
  for _ in range(300_000):
    deep = [deep]
  return deep
