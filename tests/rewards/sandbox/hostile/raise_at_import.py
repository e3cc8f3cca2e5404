# what: an exception at import, after the function is defined
# want: fail
# kind: exception
# unsafe: stopped


def add(a, b):
  return a + b


raise RuntimeError('after the definition')
