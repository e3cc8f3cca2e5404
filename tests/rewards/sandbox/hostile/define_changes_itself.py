# what: answers right once and then replaces itself by nothing
# want: some
# unsafe: stopped


def add(a, b):
  globals()['add'] = None
  return a + b
