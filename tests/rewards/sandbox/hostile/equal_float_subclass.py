# what: a float of 123.5 whose hex, ratio, text and comparisons lie
# want: fail
# kind: wrong
# unsafe: stopped


class Real(float):
  right = None

  def __eq__(self, other):
    return True

  def __repr__(self):
    return repr(self.right)

  def hex(self):
    return float(self.right).hex()

  def as_integer_ratio(self):
    return float(self.right).as_integer_ratio()

  def __float__(self):
    return float(self.right)

  __hash__ = float.__hash__


def add(a, b):
  real = Real(123.5)
  real.right = a + b
  return real
