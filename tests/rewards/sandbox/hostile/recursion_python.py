# what: endless recursion in Python
# want: fail
# kind: exception
# unsafe: stopped


def add(a, b):
  return add(b, a)
