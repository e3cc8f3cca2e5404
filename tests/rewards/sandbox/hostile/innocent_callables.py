# what: add is a partial of a method of an object that can be called
# want: pass
# kind: correct
# unsafe: stopped
import functools
import operator


class Adder:
  def __call__(self, sign, a, b):
    return operator.add(a, b) if sign else None


add = functools.partial(Adder(), True)
