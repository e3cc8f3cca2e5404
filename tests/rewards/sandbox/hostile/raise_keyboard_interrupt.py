# what: raises KeyboardInterrupt
# want: fail
# unsafe: stopped


def add(a, b):
  raise KeyboardInterrupt
