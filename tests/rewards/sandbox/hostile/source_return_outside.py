# what: return and await at the top, which an exec in a function may allow
# want: fail
# kind: syntax_error
# compiles: no
# unsafe: stopped


def add(a, b):
  return a + b


return True
