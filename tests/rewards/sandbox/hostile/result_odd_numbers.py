# what: NaN in all places, infinities, negative zero, an int of 10**6 digits
# want: fail
# unsafe: stopped
nan = float('nan')


def add(a, b):
  if a == 1:
    return nan
  if a == -5:
    return [nan, -0.0, {nan: nan}, complex(nan, float('inf'))]
  if a == 'a':
    return 7 ** (10**6)
  return float('-inf')
