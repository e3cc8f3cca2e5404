# what: containers that look like the encoding of a value or a handle
# want: fail
# unsafe: stopped


def add(a, b):
  return [
    {'type': 'int', 'value': a + b},
    ['int', str(a + b)],
    {'__handle__': 0, 'id': 1},
    ('ok', a + b),
    {'handle': 1, 'kind': 'object', 't': 'i', 'v': 3},
  ][hash(str(a)) % 5]
