# what: the right value in a type of another kind (3 in a tuple, text, bytes)
# want: fail
# kind: wrong
# unsafe: stopped


def add(a, b):
  if isinstance(a, str):
    return (a + b).encode()
  return {1: '3', -5: '', 0.5: '0.75'}.get(a, (a + b,))
