# what: empties and replaces __builtins__ of its own module
# want: some
# unsafe: stopped


def add(a, b):
  return a + b


__builtins__ = {}
globals()['__builtins__'] = {'repr': None, 'len': None}
