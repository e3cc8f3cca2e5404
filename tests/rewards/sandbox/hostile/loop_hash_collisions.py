# what: a dict of keys that all collide, quadratic in C and Python
# want: fail
# unsafe: stopped


def add(a, b):
  step = 2**61 - 1
  return {k * step for k in range(1, 60_000)}
