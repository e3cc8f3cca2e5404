# what: results whose text is code, for a checker that evaluates text
# want: fail
# unsafe: stopped

code = '__import__("os").system("echo x > {{DROP}}/repr")'


class Bomb(int):
  def __repr__(self):
    return code

  __str__ = __repr__


def add(a, b):
  return {1: Bomb(77), -5: [Bomb(77)], 'a': code}.get(a, "') or True or ('")
