# what: line ends of Windows
# want: pass
# kind: correct
# unsafe: stopped


def add(a, b):
  return a + b
