# what: defines add twice, wrong and then right, and shadows builtins
# want: pass
# kind: correct
# unsafe: stopped


def add(a, b):
  return a - b


sum = lambda pair: pair[0] + pair[1]
list = str = len = None


def add(a, b):  # noqa: F811
  return sum((a, b))
