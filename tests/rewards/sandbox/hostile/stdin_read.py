# what: reads standard input, which is empty
# want: fail
# kind: exception
# unsafe: stopped
value = input('a? ')


def add(a, b):
  return a + b
