r"""Says whether two answers are equal, without the judge.

Both are parsed by `parser.py`. Expressions are equal if they have one value at
eight random points, to 60 digits. The verdict is a text:

  equal       one value and one shape
  differs     another value or shape
  unknown     one of the texts is not understood

or one of CONVENTIONS, ways to write an answer that are not faults.
"""

import fractions
import functools
import itertools
import operator
import random

import mpmath

from benchmarks.judge import parser

mpmath.mp.dps = 100
POINTS = 8
CONVENTIONS = ('unit omitted', 'percent as a number', 'name omitted',
               'name, unit omitted',
               'brackets omitted', 'set of one element', 'base omitted',
               'letter in words')
_SAME = ('equal', *CONVENTIONS)
_SMALL = mpmath.mpf(10)**-60
# The same unit, spelt in other ways.
_PLURAL = {'feet': 'foot', 'inches': 'inch', 'cm': 'centimeter', 'ft': 'foot',
           'sq': 'square', 'centimetres': 'centimeter', 'in': 'inch'}
_EXACT = {'+': operator.add, '-': operator.sub, '*': operator.mul,
          '/': operator.truediv, '^': operator.pow, 'neg': lambda a, _: -a}
_FUNCTIONS = {
    'arcsin': mpmath.asin, 'arccos': mpmath.acos, 'arctan': mpmath.atan,
    **{name: getattr(mpmath, name) for name in (
        'sin', 'cos', 'tan', 'cot', 'sec', 'csc', 'ln', 'sinh', 'cosh', 'tanh',
        'exp')}}


def at(tree, point):
  """Returns the value of a tree at a point, a number that seeds the names."""
  if isinstance(tree, fractions.Fraction):
    return mpmath.mpf(tree.numerator) / tree.denominator
  if isinstance(tree, str):
    return named(tree, point)
  values = [at(part, point) for part in tree[1:]]
  a, b = values[0], values[-1]
  name = tree[0]
  if name == 'root':
    real = not mpmath.im(a) and mpmath.re(a) < 0 and b % 2 == 1
    return -((-a) ** (1 / b)) if real else mpmath.mpc(a) ** (1 / b)
  if name == 'log':
    return mpmath.log(a, b) if len(values) == 2 else mpmath.log(a)
  if name in _FUNCTIONS:
    return _FUNCTIONS[name](a)
  if name == '^' and (not mpmath.isfinite(b) or abs(b) > 10**5):
    raise parser.Unread('a large power')
  return {'+': lambda: a + b, '-': lambda: a - b, '*': lambda: a * b,
          '/': lambda: a / b, '^': lambda: a ** b, 'neg': lambda: -a,
          'degrees': lambda: a * mpmath.pi / 180, 'abs': lambda: abs(a),
          'factorial': lambda: mpmath.factorial(a),
          'binom': lambda: mpmath.binomial(a, b)}[name]()


@functools.lru_cache(10_000)
def named(name, point):
  """Returns the value of a name: of a constant, else a random one."""
  constants = {r'\pi': mpmath.pi, 'e': mpmath.e, 'i': mpmath.mpc(0, 1),
               r'\infty': mpmath.inf}
  if name in constants:
    return +constants[name]
  value = random.Random(f'{name} {point}').uniform(0.3, 2)
  return mpmath.mpf(value if point % 3 else -value)


def close(a, b):
  """Says whether two values are one."""
  if not (mpmath.isfinite(a) and mpmath.isfinite(b)):
    return bool(a == b)
  return abs(a - b) <= _SMALL * max(abs(a), abs(b), _SMALL)


def values(tree):
  """Returns the values of a tree at all points."""
  try:
    return [at(tree, point) for point in range(POINTS)]
  except (ZeroDivisionError, OverflowError, ValueError, TypeError) as error:
    raise parser.Unread('no value') from error


def exact(tree):
  """Returns the value of a tree of rational numbers, else None."""
  if not isinstance(tree, tuple):
    return tree if isinstance(tree, fractions.Fraction) else None
  a, b = exact(tree[1]), exact(tree[-1])
  if a is None or b is None or tree[0] not in _EXACT:
    return None
  if tree[0] == '^' and (b.denominator > 1 or abs(b) > 10**4) or (
      not a and tree[0] == '^' or not b and tree[0] == '/'):
    return None
  return _EXACT[tree[0]](a, b)


def same_tree(a, b):
  """Says whether two trees are equal: exactly, or at all points."""
  first, second = exact(a), exact(b)
  if first is not None and second is not None:
    return first == second
  return all(map(close_sum, values(a), values(b)))


def close_sum(a, b):
  """Is close(), but takes what cancels to almost nothing as zero."""
  return close(a, b) or bool(
      mpmath.isfinite(a) and mpmath.isfinite(b) and abs(a - b) < _SMALL)


def unit_of(text):
  """Returns the words of a unit in the singular."""
  return ' '.join(_PLURAL.get(w, w.rstrip('s')) for w in text.split())


def compare(first, second):
  """Returns the verdict on two texts."""
  try:
    return same(parser.parse(first), parser.parse(second))
  except (parser.Unread, RecursionError):
    return 'unknown'


def worst(verdicts):
  """Returns the verdict on parts that all have to be equal."""
  found = set(verdicts)
  for verdict in ('differs', 'unknown', *CONVENTIONS):
    if verdict in found:
      return verdict
  return 'equal'


def same(a, b):
  """Returns the verdict on two shapes."""
  if a[0] != b[0] or a[0] in ('list', 'union') and len(a[1]) != len(b[1]):
    return across(a, b)
  kind = a[0]
  if kind == 'value':
    return same_value(a, b)
  if kind == 'sequence':
    if (a[1], a[3], len(a[2])) != (b[1], b[3], len(b[2])):
      return 'differs'
    return worst(map(same, a[2], b[2]))
  if kind in ('list', 'union'):
    return unordered(a[1], b[1])
  if kind == 'matrix':
    if [len(r) for r in a[2]] != [len(r) for r in b[2]]:
      return 'differs'
    if a[1] != b[1] and not {a[1], b[1]} <= {'pmatrix', 'bmatrix'}:
      return 'differs'
    return worst(same(x, y) for r, s in zip(a[2], b[2]) for x, y in zip(r, s))
  if kind == 'relation':
    return same_relation(a, b)
  return 'equal' if a == b else 'differs'


def same_value(a, b):
  """Returns the verdict on two expressions with units."""
  if not same_tree(a[1], b[1]):
    if '%' in (a[2], b[2]) and a[2] != b[2]:
      hundred = '/', a[1] if a[2] == '%' else b[1], fractions.Fraction(100)
      if same_tree(hundred, b[1] if a[2] == '%' else a[1]):
        return 'percent as a number'
    return 'differs'
  units = {unit_of(a[2]), unit_of(b[2])}
  if len(units) == 1:
    return 'equal'
  return 'unit omitted' if '' in units else 'differs'


def unordered(a, b):
  """Returns the verdict on two lists in any order."""
  b = list(b)
  verdicts = []
  for one in a:
    found = [same(one, other) for other in b]
    good = [i for i, v in enumerate(found) if v in _SAME]
    if not good:
      return 'unknown' if 'unknown' in found else 'differs'
    verdicts.append(found[good[0]])
    b.pop(good[0])
  return worst(verdicts)


def difference(shape):
  """Yields (sign, left minus right) of each relation of a chain."""
  for left, right, sign in zip(shape[1], shape[1][1:], shape[2]):
    if left[0] != 'value' or right[0] != 'value':
      raise parser.Unread('a relation of other shapes')
    if sign in ('>', '>='):
      left, right, sign = right, left, sign.replace('>', '<')
    yield sign, ('-', left[1], right[1])


def same_relation(a, b):
  """Returns the verdict on two relations.

  Both sides may be multiplied by one number, a positive one if it is an
  inequality. Chains have the same relations in any order.
  """
  if all(p[0] == 'value' for p in a[1] + b[1]) and not {'in'} & {*a[2], *b[2]}:
    first, second = list(difference(a)), list(difference(b))
    if len(first) != len(second):
      return 'differs'
    if all(map(constant, first + second)):  # so that 0 = 1 is not 0 = 2
      return worst(map(same, a[1], b[1])) if a[2] == b[2] else 'differs'
    pairings = itertools.permutations(second)
    return 'equal' if any(
        all(map(proportional, first, other)) for other in pairings
    ) else 'differs'
  if a[2] != b[2] or len(a[1]) != len(b[1]):
    return 'differs'
  return worst(map(same, a[1], b[1]))


def constant(relation):
  """Says whether left minus right is one number at all points."""
  found = values(relation[1])
  return all(close_sum(v, found[0]) for v in found)


def proportional(first, second):
  """Says whether two relations to zero are one up to a factor."""
  if first[0] != second[0]:
    return False
  pairs = list(zip(values(first[1]), values(second[1])))
  if any(not mpmath.isfinite(v) for pair in pairs for v in pair):
    raise parser.Unread('infinite')
  zeros = {tuple(abs(v) < _SMALL for v in pair) for pair in pairs}
  if zeros != {(False, False)} or constant(first) and constant(second):
    return False
  ratios = [x / y for x, y in pairs]
  positive = first[0] in ('=', '!=') or mpmath.re(ratios[0]) > 0
  return positive and all(close(r, ratios[0]) for r in ratios)


def is_name(shape):
  """Says whether a side of a relation is a name: x, AB, f(x), or nothing."""
  def letters(tree):
    return isinstance(tree, str) or isinstance(tree, tuple) and (
        tree[0] == '*' and all(map(letters, tree[1:])))
  return shape[0] == 'words' or shape[0] == 'value' and letters(shape[1])


def across(a, b):
  """Returns the verdict on two shapes of different kinds."""
  for one, other in ((a, b), (b, a)):
    if one[0] == 'relation' and one[2] in (['='], ['in'], ['~']):
      verdict = same(one[1][-1], other)
      if is_name(one[1][0]) and verdict in _SAME:
        return ('name' if verdict == 'equal' else 'name, unit') + ' omitted'
    if one[0] == 'list' and other[0] == 'sequence':
      if unordered(one[1], other[2]) in _SAME:
        return 'brackets omitted'
    if one[0] == 'list' and len(one[1]) == 1 and same(
        one[1][0], other) == 'equal':
      return 'set of one element'
    if one[0] == 'base' and other[0] == 'value':
      if one[1] == str(other[1]):
        return 'base omitted'
    if one[0] == 'words' and other[0] == 'value' and isinstance(other[1], str):
      if one[1] == other[1].lower():
        return 'letter in words'
  return 'differs'
