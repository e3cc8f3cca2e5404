# what: returns a text of 200 MB
# want: fail
# unsafe: stopped


def add(a, b):
  return 'r' * (200 << 20)
