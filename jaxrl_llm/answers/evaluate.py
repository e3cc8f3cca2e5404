r"""Equality of expressions, by their values at some points.

An expression is evaluated with balls (Arb's), so that the error is bounded with
certainty. Two are different if their balls do not meet at some point, and equal
if they meet at several, with 30 digits and then with many more. Plain fractions
are compared exactly. What has no value that can be bounded (too large, no real
number, outside of a domain) is `Undefined`, and where no point is left the
expressions are not equal.

Sums without end, limits and integrals with letters are not computed: their
value is a number drawn from what they are of, so that they equal only their
like. So it is with f(x) of a function that is not known.
"""

import fractions
import functools
import hashlib
import itertools
import math
from typing import Any, Iterator, Sequence

import flint

from jaxrl_llm.answers.grammar import Node

# Digits that refuse, and digits that accept.
_DIGITS, _SURE, _SURE_OF_INTEGRALS = 30, 1000, 60
_LARGEST = 4000  # digits of an exact fraction
_LARGEST_LOG = 10**7  # natural logarithm of a power
_STEPS = 20_000  # nodes that one evaluation may visit
_TERMS = 2000  # of a sum that is computed


class Undefined(ArithmeticError):
  """Raised where an expression has no value, or none that can be bounded."""


def exact(node: Node) -> fractions.Fraction | None:
  """Returns the value of an expression of fractions, or None."""
  op, args = node
  if op == 'number':
    return fractions.Fraction(args[0])
  if op not in ('neg', '+', '*', '/', '^'):
    return None
  parts = [exact(arg) for arg in args]
  if None in parts:
    return None
  if op == 'neg':
    return -parts[0]
  if op == '+':
    if sum(map(_digits, parts)) > _LARGEST:
      return None
    return sum(parts, fractions.Fraction(0))
  if op == '*':
    result = fractions.Fraction(1)
    for part in parts:
      if _digits(result) + _digits(part) > _LARGEST:
        return None
      result *= part
    return result
  base, other = parts
  if op == '/':
    return base / other if other else None
  if other.denominator != 1 or not base and other <= 0 or (
      abs(other) * _digits(base) > _LARGEST):
    return None
  return base ** int(other)


def _digits(value: fractions.Fraction) -> float:
  """Returns an upper bound of the number of digits of a fraction."""
  return .302 * max(value.numerator.bit_length(),
                    value.denominator.bit_length()) + .31


def letters(node: Any, bound: frozenset[str] = frozenset()) -> frozenset[str]:
  """Returns the names that an expression depends on; not e, i and pi."""
  if not isinstance(node, Node):
    if isinstance(node, tuple):
      return frozenset().union(*(letters(part, bound) for part in node))
    return frozenset()
  if node.op == 'name':
    return frozenset([node.args[0]]) - bound - {'e', 'i', r'\pi'}
  if node.op == 'big':
    _, variable, *parts = node.args
    return letters(tuple(parts), bound | {variable.args[0]})
  return letters(node.args, bound)


def has_imaginary(node: Any, bound: bool = False) -> bool:
  """Tells whether the imaginary unit is in an expression."""
  if not isinstance(node, Node):
    return isinstance(node, tuple) and any(
        has_imaginary(part, bound) for part in node)
  if node.op == 'name':
    return node.args[0] == 'i' and not bound
  if node.op == 'function' and node.args[0] in ('Re', 'Im', 'arg'):
    return True
  if node.op == 'big':
    _, variable, *parts = node.args
    return has_imaginary(tuple(parts), bound or variable.args[0] == 'i')
  return has_imaginary(node.args, bound)


def drawn(key: str, low: float = .3, high: float = 3) -> fractions.Fraction:
  """Returns a number that is given by a text, between two bounds."""
  bits = int.from_bytes(hashlib.sha256(key.encode()).digest()[:6])
  return fractions.Fraction(low) + fractions.Fraction(
      bits, 1 << 48) * fractions.Fraction(high - low)


class _Evaluator:
  """One evaluation, at one point; `flint.ctx` has the number of digits."""

  def __init__(self, point: dict[str, Any], is_complex: bool):
    self.point, self.steps = dict(point), iter(range(_STEPS))
    self.is_complex, self.is_analytic = is_complex, False
    self.type = flint.acb if is_complex else flint.arb
    self.is_sure = flint.ctx.dps > _DIGITS

  def value(self, node: Node) -> Any:
    """Returns the value of a node as a ball.

    Raises:
      Undefined: it has none.
    """
    if next(self.steps, None) is None:
      raise Undefined('too long')
    method = getattr(self, _METHODS.get(node.op, ''), None)
    if method is None:
      raise Undefined(node.op)
    try:
      found = method(*node.args)
    except (ZeroDivisionError, ValueError, OverflowError) as error:
      raise Undefined(str(error)) from error
    if not found.is_finite():
      raise Undefined('not finite')
    return found

  def of(self, value: Any) -> Any:
    """Returns a number as a ball."""
    if isinstance(value, fractions.Fraction):
      value = flint.fmpq(value.numerator, value.denominator)
    return self.type(value)

  def name(self, name: str) -> Any:
    if name in self.point:
      return self.of(self.point[name])
    if name == r'\pi':
      return self.of(flint.arb.pi())
    if name == 'e':
      return self.of(flint.arb.const_e())
    if name == 'i':
      return flint.acb(0, 1)
    raise Undefined(name)

  def neg(self, node: Node) -> Any:
    return -self.value(node)

  def add(self, *nodes: Node) -> Any:
    terms = [self.value(node) for node in nodes]
    found = sum(terms, self.of(0))
    if self.is_sure and any(
        abs(t) < max(found.real.rad(), found.imag.rad()) * 2**40
        for t in terms if not t.contains(0)):
      raise Undefined('a term below the error')  # 99999! + 1
    return found

  def multiply(self, *nodes: Node) -> Any:
    return math.prod(map(self.value, nodes), start=self.of(1))

  def divide(self, top: Node, low: Node) -> Any:
    return self.value(top) / self.value(low)

  def power(self, base: Node, exponent: Node) -> Any:
    ratio, b, x = exact(exponent), self.value(base), self.value(exponent)
    if b.contains(0) and small(b):
      return self._power_of_zero(x)
    if b.contains(0) and self.is_complex and ratio is not None and (
        ratio.denominator == 1 and 0 < ratio < 1000):
      return b ** int(ratio)  # in an integral
    self._check_size(b, x)
    if ratio is None and not self.is_complex:
      whole = x.unique_fmpz()  # such as 3!
      ratio = None if whole is None else fractions.Fraction(int(whole))
    if ratio is not None and ratio.denominator == 1:
      return b ** int(ratio)
    if not self.is_complex and b < 0:
      if ratio is None or ratio.denominator % 2 == 0:
        raise Undefined('a root of a negative number')
      found = (-b) ** x
      return -found if ratio.numerator % 2 else found
    return b.pow(x, analytic=self.is_analytic) if self.is_complex else b ** x

  def _power_of_zero(self, x: Any) -> Any:
    if self.is_complex or not x > 0:
      raise Undefined('a power of zero')
    return self.of(0)

  def _check_size(self, b: Any, x: Any) -> None:
    """Raises Undefined for a power that is too large or too small."""
    if not abs(x) * abs(abs(b).log()) < _LARGEST_LOG:
      raise Undefined('too large')

  def root(self, degree: Node, inside: Node) -> Any:
    n, b = exact(degree), self.value(inside)
    if n is None or n.denominator != 1 or not 1 < n < 1000:
      return self.power(inside, Node('/', (
          Node('number', (fractions.Fraction(1),)), degree)))
    if b.contains(0) and small(b):
      return self.of(0)
    if n == 2:
      return b.sqrt(analytic=self.is_analytic) if self.is_complex else b.sqrt()
    is_negative = b.real < 0 and small(b.imag)
    if self.is_complex and is_negative and not self.is_analytic:
      raise Undefined('a root that is the real or the principal one')
    if not self.is_complex and is_negative and n % 2:
      return -(-b).root(int(n))
    if self.is_complex:
      return b.pow(self.of(1 / n), analytic=self.is_analytic)
    return b.root(int(n))

  def absolute(self, node: Node) -> Any:
    found = self.value(node)
    if self.is_analytic:
      return found.real_abs(analytic=True)
    return self.of(abs(found))

  def integer(self, node: Node) -> int:
    """Returns the value of an integer.

    Raises:
      Undefined: it is none.
    """
    found = self.value(node)
    whole = found.unique_fmpz()
    if whole is None or not small(found) or abs(whole) > 10**15:
      raise Undefined('no integer')
    return int(whole)

  def floor(self, node: Node) -> Any:
    found = self.value(node)
    whole = found.unique_fmpz()
    if whole is not None and small(found):
      return self.of(whole)
    if self.is_complex or not found.floor().is_exact():
      raise Undefined('a part of a number')
    return found.floor()

  def ceil(self, node: Node) -> Any:
    return -self.floor(Node('neg', (node,)))

  def factorial(self, node: Node) -> Any:
    found = self.value(node)
    if not abs(found) < 10**5:
      raise Undefined('a factorial')
    return (found + 1).gamma()

  def double_factorial(self, node: Node) -> Any:
    n = self.integer(node)
    if not -1 <= n <= 10**4:
      raise Undefined('a double factorial')
    return self.of(math.prod(range(n, 0, -2)))

  def binomial(self, top: Node, low: Node) -> Any:
    n, k = self.value(top), self.value(low)
    count = k.unique_fmpz()
    if count is not None and small(k):
      if not 0 <= count <= 10**4:
        raise Undefined('a binomial')
      chosen = math.prod((n - i for i in range(int(count))), start=self.of(1))
      return chosen / self.of(math.factorial(int(count)))
    return (n + 1).gamma() / ((k + 1).gamma() * (n - k + 1).gamma())

  def degree(self, node: Node) -> Any:
    return self.value(node) * flint.arb.pi() / 180

  def function(self, name: str, nodes: tuple[Node, ...]) -> Any:
    if name in ('gcd', 'lcm'):
      return self.of(getattr(math, name)(*map(self.integer, nodes)))
    values = [self.value(node) for node in nodes]
    if name in ('max', 'min') and not self.is_complex:
      return functools.reduce(getattr(flint.arb, name), values)
    x, = values
    if name in ('Re', 'Im'):
      return self.of(x.real if name == 'Re' else x.imag)
    if name == 'arg':
      return self.of(x.arg())
    if name == 'sgn':
      return x.sgn()
    if name == 'ln':
      return x.log(analytic=True) if self.is_analytic else x.log()
    if name == 'exp':
      return self.power(Node('name', ('e',)), nodes[0])
    if name.startswith('arc'):
      name = 'a' + name[3:]
      if name in _RECIPROCALS:
        name, x = _RECIPROCALS[name], 1 / x
    if not hasattr(x, name):
      raise Undefined(name)
    return getattr(x, name)()

  def log(self, base: Node, node: Node) -> Any:
    return self.value(node).log() / self.value(base).log()

  def mod(self, node: Node, modulus: Node) -> Any:
    m = self.integer(modulus)
    return self.of(self.integer(node) % abs(m))

  def call(self, name: str, nodes: tuple[Node, ...]) -> Any:
    """Evaluates f(x): a number drawn, if the function is not a known one."""
    if name == 'C' and len(nodes) == 2:
      return self.binomial(*nodes)
    if name in (r'\Gamma', r'\zeta') and len(nodes) == 1:
      return getattr(self.value(nodes[0]), name[1:].lower())()
    return self._drawn(name, nodes)

  def accent(self, mark: str, node: Node) -> Any:
    if mark == r'\bar' and self.is_complex:
      return self.value(node).conjugate()
    return self._drawn(mark, node)

  def _drawn(self, *parts: Any) -> Any:
    return self.of(drawn(' '.join(map(self._text, parts)), -3, 3))

  def _text(self, part: Any) -> str:
    """Writes what equal parts have in common."""
    if isinstance(part, str):
      return part
    if not isinstance(part, Node):
      return '(' + ' '.join(map(self._text, part)) + ')'
    if part.op in ('infinity', 'word') or part.op == 'neg' and (
        part.args[0].op == 'infinity'):
      return repr(part)
    found = self.value(part)
    return ' '.join(
        '0' if x.contains(0) else x.mid().str(20, radius=False)
        for x in (found.real, found.imag))

  def big(
      self, kind: str, variable: Node, low: Node, high: Node, body: Node
  ) -> Any:
    """Evaluates a sum, product or integral; draws a number for anything else.
    """
    name = variable.args[0]
    before = self.point.get(name)
    body = _indexed(body, name)
    try:
      if kind in ('sum', 'prod') and (bounds := self._bounds(low, high)):
        return self._computed(kind, name, bounds, body)
      if kind == 'int' and (
          found := self._integral(name, low, high, body)) is not None:
        return found
      self.point[name] = drawn('bound', .3, .9)
      values = self._text(body)
      self.point[name] = drawn('bound too', -2.7, -1.2)
      return self._drawn(kind, low, high, values, body)
    finally:
      self.point.pop(name, None)
      if before is not None:
        self.point[name] = before

  def _bounds(self, low: Node, high: Node) -> tuple[int, int] | None:
    try:
      first, last = self.integer(low), self.integer(high)
    except Undefined:
      return None
    return (first, last) if last - first < _TERMS else None

  def _computed(
      self, kind: str, name: str, bounds: tuple[int, int], body: Node) -> Any:
    terms = []
    for i in range(bounds[0], bounds[1] + 1):
      self.point[name] = i
      terms.append(self.value(body))
    return sum(terms, self.of(0)) if kind == 'sum' else math.prod(
        terms, start=self.of(1))

  def _integral(
      self, name: str, low: Node, high: Node, body: Node) -> Any | None:
    """Returns an integral of one variable between finite bounds, or None."""
    if 'word' in (low.op, high.op) or letters((low, high)) or letters(
        body) - {name} or any(
            n.op in ('call', 'accent') for n in _parts(body)):
      return None
    found = _integrated(name, low, high, body, flint.ctx.dps)
    return found if found is None or self.is_complex else found.real

  def determinant(self, *rows: tuple[Node, ...]) -> Any:
    if len(rows) != len(rows[0]) or len(rows) > 5:
      raise Undefined('a determinant')
    return self._minor([[self.value(x) for x in row] for row in rows])

  def _minor(self, rows: list[list[Any]]) -> Any:
    if not rows:
      return self.of(1)
    return sum(
        ((-1) ** i * first * self._minor([r[:i] + r[i + 1:] for r in rows[1:]])
         for i, first in enumerate(rows[0])), self.of(0))


_METHODS = {
    'number': 'of', 'name': 'name', 'neg': 'neg', '+': 'add',
    '*': 'multiply', '/': 'divide', '^': 'power', 'root': 'root',
    'abs': 'absolute', 'norm': 'absolute', 'floor': 'floor', 'ceil': 'ceil',
    '!': 'factorial', '!!': 'double_factorial', 'binomial': 'binomial',
    'degree': 'degree', 'function': 'function', 'log': 'log', 'mod': 'mod',
    'call': 'call', 'accent': 'accent', 'big': 'big',
    'determinant': 'determinant'}
_RECIPROCALS = {'acot': 'atan', 'asec': 'acos', 'acsc': 'asin'}


# An integral is the same at every point, and takes long.
@functools.lru_cache(1 << 8)
def _integrated(
    name: str, low: Node, high: Node, body: Node, digits: int) -> Any | None:
  """Returns an integral with these digits, or None if it takes too long."""
  del digits  # those of flint.ctx
  inner = _Evaluator({}, True)

  def integrand(x, is_analytic):
    inner.point[name], inner.is_analytic = x, is_analytic
    try:
      return inner.value(body)
    except Undefined:
      return flint.acb('nan')

  try:
    ends = [flint.acb(_Evaluator({}, True).value(end)) for end in (low, high)]
    found = flint.acb.integral(
        integrand, *ends, eval_limit=_STEPS // 10, depth_limit=64)
  except (Undefined, ValueError):
    return None
  return found if found.is_finite() and small(found) else None


@functools.lru_cache(1 << 8)
def _indexed(node: Any, variable: str) -> Any:
  """Makes a_k a function of k, where k is bound.

  Raises:
    Undefined: an index has k and something else.
  """
  if isinstance(node, Node):
    if node.op == 'name' and '_' in node.args[0]:
      name, _, index = node.args[0].partition('_')
      if index == variable:
        return Node('call', (name + '_', (Node('name', (variable,)),)))
      if variable in index:
        raise Undefined('an index')
      return node
    return Node(node.op, _indexed(node.args, variable))
  return tuple(_indexed(part, variable) for part in node) if isinstance(
      node, tuple) else node


def small(ball: Any) -> bool:
  """Tells whether the error of a ball is small, so that it says something."""
  return all(x.rad() < (1 + abs(x.mid())) * flint.arb(10) ** (
      -flint.ctx.dps // 2) for x in (ball.real, ball.imag))


_STEPPED = frozenset(['floor', 'ceil', 'mod', 'gcd', 'lcm'])
_COMPLEX_NAMES = frozenset('zw')


def _parts(node: Any) -> Iterator[Node]:
  """Yields all nodes of a tree."""
  if isinstance(node, Node):
    yield node
    node = node.args
  if isinstance(node, tuple):
    for part in node:
      yield from _parts(part)


def _kinds(nodes: Sequence[Node]) -> set[str]:
  """Returns the ops of expressions and the names of their functions."""
  return {name for n in _parts(tuple(nodes)) for name in (
      n.op, n.args[0] if n.op in ('function', 'big', 'accent') else n.op)}


Point = dict[str, Any]


def points(names: Sequence[str]) -> Iterator[Point]:
  """Yields points of all signs (of three names), small and large."""
  count = min(2 ** len(names), 8)
  for shift in range(max(count, 4)):
    point = {}
    for i, name in enumerate(names):
      low, high = ((1.13, 3.9), (.11, .93))[(shift + i * (shift > 1)) % 2]
      size = drawn(f'{name} {shift}', low, high)
      is_negative = shift >> i & 1 if i < 3 else (
          drawn(f'{name} {shift} sign', 0, 1) < .5)
      point[name] = -size if is_negative and shift else size
    yield point
  # Within the domains of arcsin, and of most roots and logarithms.
  for shift in range(2):
    yield {name: drawn(f'{name} small {shift}', .11, .93) for name in names}


def _points_near_bends(
    names: Sequence[str], nodes: Sequence[Node]) -> Iterator[Point]:
  """Yields points on all sides of where a piecewise function may change.

  These are near and between the numbers of the expressions, and many others.
  """
  numbers = {fractions.Fraction(0)}
  for part in _parts(tuple(nodes)):
    if not letters(part) and (value := exact(part)) is not None:
      numbers |= {abs(value), 1 - abs(value) % 1}
  numbers = sorted(numbers)[-12:]
  steps = [fractions.Fraction(x, 80) for x in (-31, -7, 7, 31)]
  steps += [fractions.Fraction(x, 997) for x in (-1, 1)]
  near = [s * c + step for c in numbers for step in steps for s in (1, -1)]
  near += [(a + b) / 2 + fractions.Fraction(1, 97)
           for a, b in zip(numbers, numbers[1:])]
  for i, at in enumerate(near):
    yield {name: at if len(names) == 1 else near[int(drawn(
        f'{name} {i} near', 0, len(near)))] for name in names}
  for i in range(48):
    yield {name: drawn(f'{name} {i} wide', -6, 6) for name in names}


def _points_near_steps(
    names: Sequence[str], nodes: Sequence[Node]) -> Iterator[Point]:
  """Yields integers about the numbers of the expressions, such as moduli."""
  numbers = sorted({int(n.args[0]) for n in _parts(tuple(nodes))
                    if n.op == 'number' and 9 < n.args[0] < 10**9})[:8]
  near = [i for c in numbers for i in (c // 2, c - 1, c, c + 1, 2 * c + c // 3)]
  for i, at in enumerate(near):
    yield {name: fractions.Fraction(
        near[(i + j * (1 + i // len(names))) % len(near)] if j else at)
           for j, name in enumerate(names)}


def integer_points(names: Sequence[str], count: int = 4) -> Iterator[Point]:
  """Yields points of positive integers; many of one name are in a row."""
  for i in range(count):
    yield {name: fractions.Fraction(
        i + 1 if len(names) == 1
        else int(drawn(f'{name} int {i}', 2, 9 if count == 4 else 24)))
           for name in names}


def _point_sets(
    names: Sequence[str], nodes: Sequence[Node]) -> list[Iterator[Point]]:
  """Returns the points to try; later sets only if earlier ones say nothing."""
  if not names:
    return [iter([{}])]
  kinds = _kinds(nodes)
  if _has_open_bounds(tuple(nodes)):
    return [integer_points(names, 24)]  # a sum up to n
  found = [points(names), integer_points(names)]
  if kinds & _STEPPED:
    found = [itertools.chain(
        integer_points(names, 64), _points_near_steps(names, nodes),
        _points_near_bends(names, nodes))]
  elif kinds & {'abs', 'norm', 'max', 'min', 'sgn'}:
    found[0] = itertools.chain(found[0], _points_near_bends(names, nodes))
  return found


def _with_complex(point: Point, kinds: set[str]) -> Point:
  """Gives z and w complex values where a modulus or conjugate is taken."""
  if not kinds & {'abs', 'Re', 'Im', 'arg', r'\bar'}:
    return point
  return {name: flint.acb(_number(value), _number(drawn(f'{name} {value}')))
          if name in _COMPLEX_NAMES else value for name, value in point.items()}


def _number(value: fractions.Fraction) -> Any:
  return flint.arb(flint.fmpq(value.numerator, value.denominator))


def _value(node: Node, point: Any, is_complex: bool) -> Any:
  """Returns the value of an expression at a point.

  Raises:
    Undefined: it has none, or none of a small error.
  """
  found = _Evaluator(point, is_complex).value(node)
  if not small(found):
    raise Undefined('a large error')
  return found


def equal(a: Node, b: Node, tolerance: float = 0.0) -> bool:
  """Compares two expressions.

  Args:
    a: the reference.
    b: what was found.
    tolerance: largest error of a number, relative to the reference.
  """
  if a == b:
    return True
  x, y = exact(a), exact(b)
  if x is not None and y is not None:
    return abs(x - y) <= fractions.Fraction(tolerance) * abs(x)
  names = sorted(letters(a) | letters(b))
  is_complex = has_imaginary(a) or has_imaginary(b)
  found = _agree(a, b, names, is_complex, tolerance)
  return bool(found)


def _agree(
    a: Node, b: Node, names: Sequence[str], is_complex: bool,
    tolerance: float) -> bool:
  """Compares two expressions at some points."""
  seen, kinds = [], _kinds((a, b))
  is_complex = is_complex or bool(
      _COMPLEX_NAMES & set(names) and kinds & {'abs', 'Re', 'Im', r'\bar'})
  for point_set in _point_sets(names, (a, b)):
    for point in point_set:
      point = _with_complex(point, kinds)
      with flint.ctx.workdps(_DIGITS):
        x, y = (_value_or_none(node, point, is_complex) for node in (a, b))
        if x is None or y is None:
          if x is not y and kinds & {'abs'}:
            return False  # ln x is not ln |x|
          continue
        if not (x - y).contains(0):
          return not names and bool(abs(x - y) <= abs(x) * tolerance)
      seen.append(point)
    if len(seen) > bool(names):
      break
  if len(seen) <= bool(names):
    return False
  sure = 0
  # Integrals to many digits take seconds.
  with flint.ctx.workdps(_SURE_OF_INTEGRALS if 'int' in kinds else _SURE):
    for point in seen:
      x, y = (_value_or_none(node, point, is_complex) for node in (a, b))
      if x is None or y is None:
        continue
      if not (x - y).contains(0):
        return False
      sure += 1
      if sure > bool(names):
        return True
  return False


def _value_or_none(node: Node, point: Point, is_complex: bool) -> Any | None:
  try:
    return _value(node, point, is_complex)
  except Undefined:
    return None


def _has_open_bounds(node: Any) -> bool:
  """Tells whether a sum or product has letters in its bounds."""
  if isinstance(node, Node):
    return node.op == 'big' and node.args[0] in ('sum', 'prod') and bool(
        letters(node.args[2:4])) or _has_open_bounds(node.args)
  return isinstance(node, tuple) and any(map(_has_open_bounds, node))


def same_steps(a: Node, b: Node, name: str) -> bool:
  """Tells whether a and b, linear in an integer, have the same values.

  These are all numbers p + q k: q may have another sign, and p may differ by a
  multiple of q.
  """
  if letters(a) != letters(b) or letters(a) != {name}:
    return False
  try:
    with flint.ctx.workdps(_SURE):
      (p, q), (r, s) = (_line(node, name) for node in (a, b))
      count = ((p - r) / q).unique_fmpz()
      return count is not None and (abs(q) - abs(s)).contains(0)
  except (Undefined, ZeroDivisionError):
    return False


def _line(node: Node, name: str) -> tuple[Any, Any]:
  """Returns p and q of p + q k.

  Raises:
    Undefined: it is no line.
  """
  values = [_value(node, {name: k}, False) for k in range(4)]
  steps = [y - x for x, y in zip(values, values[1:])]
  if steps[0].contains(0) or not all(
      (step - steps[0]).contains(0) for step in steps):
    raise Undefined('no line')
  return values[0], steps[0]


def ratio_sign(a: Node, b: Node) -> int:
  """Returns the sign of the constant c != 0 for which a = c b, 0 for none."""
  names = sorted(letters(a))
  if letters(b) != letters(a) or not names:
    return 0
  is_complex = has_imaginary(a) or has_imaginary(b)
  with flint.ctx.workdps(_SURE):
    found = []
    for point_set in _point_sets(names, (a, b)):
      for point in point_set:
        x, y = (_value_or_none(node, point, is_complex) for node in (a, b))
        if x is None or y is None:
          continue
        if x.contains(0) or y.contains(0):
          if not (x.contains(0) and y.contains(0)):
            return 0
          continue
        found.append((x, y))
      if len(found) > 2:
        break
    if len(found) < 3 or not all(
        (x * found[0][1] - y * found[0][0]).contains(0) for x, y in found):
      return 0
    factor = (found[0][0] / found[0][1]).real
    return 1 if factor > 0 else -1


def approximate(node: Node) -> fractions.Fraction:
  """Returns the value of an expression without letters, to 25 digits.

  Raises:
    Undefined: it has none, or it is very large or small.
  """
  with flint.ctx.workdps(_DIGITS):
    found = _value(node, {}, has_imaginary(node))
    if not found.imag.contains(0):
      raise Undefined('no real number')
    if found.contains(0):
      return fractions.Fraction(0)
    if not 1e-300 < abs(found.real) < 1e300:
      raise Undefined('a very large or small number')
    return fractions.Fraction(found.real.mid().str(25, radius=False))
