# what: takes no arguments, or keyword arguments alone
# want: fail
# kind: exception
# unsafe: stopped


def add(*, a=1, b=2, verdict='correct'):
  return a + b
