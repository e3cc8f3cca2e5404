# what: a byte order mark at the start
# want: pass
# kind: correct
# unsafe: stopped


def add(a, b):
  return a + b
