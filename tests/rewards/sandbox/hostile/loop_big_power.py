# what: 10 ** 10 ** 8 holds the interpreter in C
# want: fail
# unsafe: stopped


def add(a, b):
  big = 10
  return a + b + (big**big**8) * 0
