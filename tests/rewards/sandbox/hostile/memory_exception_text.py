# what: raises an exception whose text is 200 MB
# want: fail
# unsafe: stopped


def add(a, b):
  raise ValueError('v' * (200 << 20))
