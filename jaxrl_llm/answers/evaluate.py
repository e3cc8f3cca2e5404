r"""Values of expressions, with bounds of their errors.

An expression is evaluated with balls (Arb's), so that the error is bounded with
certainty; plain fractions are exact. What has no value that can be bounded (too
large, no real number) is `Undefined`. The value of f(x), of a function that is
not known, is a number drawn from its name and argument.
"""

import fractions
import functools
import hashlib
import math
from typing import Any, Callable, Iterator, Mapping

import flint

from jaxrl_llm.answers.grammar import Node, number

# Digits that refuse, and digits that accept.
DIGITS, SURE = 30, 1000
_LARGEST = 4000  # digits of an exact fraction
_LARGEST_LOG = 10**7  # natural logarithm of a power
_STEPS = 20_000  # nodes that one evaluation may visit
# Arguments whose function may differ from its limit by less than the error.
_TINY, _HUGE = flint.arb('1e-250'), flint.arb('1e250')


class Undefined(ArithmeticError):
  """Raised where an expression has no value, or none that can be bounded."""


class Outside(Undefined):
  """Raised outside of the real domain of a root or an arcsine."""


def exact(node: Node) -> fractions.Fraction | None:
  """Returns the value of an expression of fractions, or None."""
  op, args = node
  if op == 'number':
    return fractions.Fraction(args[0])
  if op not in ('neg', '+', '*', '/', '^'):
    return None
  values = [exact(arg) for arg in args]
  if None in values or sum(map(_digits, values)) > _LARGEST:
    return None
  if op in '+*':
    return sum(values) if op == '+' else math.prod(values)
  base, other = values[0], values[-1]
  if op == 'neg':
    return -base
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


def parts(node: Any) -> Iterator[Node]:
  """Yields all nodes of a tree, a node before its parts."""
  stack = [node]
  while stack:
    node = stack.pop()
    if isinstance(node, Node):
      yield node
      node = node.args
    if isinstance(node, tuple):
      stack += node[::-1]


def rebuilt(node: Any, change: Callable[[Node], Node]) -> Any:
  """Returns a tree whose nodes are changed, the parts of a node before it."""
  if isinstance(node, Node):
    return change(Node(node.op, rebuilt(node.args, change)))
  return tuple(rebuilt(part, change) for part in node) if isinstance(
      node, tuple) else node


@functools.lru_cache(1 << 13)
def letters(node: Any) -> frozenset[str]:
  """Returns the names that an expression depends on; not e, i and pi."""
  return frozenset(
      n.args[0] for n in parts(node) if n.op == 'name') - {'e', 'i', r'\pi'}


def has_imaginary(node: Any) -> bool:
  """Tells whether the imaginary unit is in an expression."""
  return any(
      n.op == 'name' and n.args[0] == 'i'
      or n.op == 'function' and n.args[0] in ('Re', 'Im', 'arg', 'cis')
      for n in parts(node))


def drawn(key: str, low: float = .3, high: float = 3) -> fractions.Fraction:
  """Returns a number that is given by a text, between two bounds."""
  bits = int.from_bytes(hashlib.sha256(key.encode()).digest()[:6])
  return fractions.Fraction(low) + fractions.Fraction(
      bits, 1 << 48) * fractions.Fraction(high - low)


class _Evaluator:
  """One evaluation, at one point; `flint.ctx` has the number of digits."""

  def __init__(self, point: Mapping[str, Any], is_complex: bool):
    self.point, self.steps, self.is_complex = point, _STEPS, is_complex
    self.type = flint.acb if is_complex else flint.arb
    self.is_sure = flint.ctx.dps > DIGITS

  def value(self, node: Node) -> Any:
    """Returns the value of a node as a ball.

    Raises:
      Undefined: it has none.
    """
    self.spend(1)
    method = getattr(self, _METHODS.get(node.op, node.op), None)
    if method is None:
      raise Undefined(node.op)
    try:
      found = method(*node.args)
    except (ZeroDivisionError, ValueError, OverflowError) as error:
      raise Undefined(str(error)) from error
    if not found.is_finite():
      raise Undefined('not finite')
    return found

  def spend(self, steps: int) -> None:
    """Counts steps; raises `Undefined` if they are too many."""
    self.steps -= steps
    if self.steps < 0:
      raise Undefined('too long')

  def of(self, value: Any) -> Any:
    """Returns a number as a ball."""
    if isinstance(value, tuple):
      return flint.acb(*(self.of(part).real for part in value))
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
      if self.is_complex or not x > 0:
        raise Undefined('a power of zero')
      return self.of(0)
    if not abs(x) * abs(abs(b).log()) < _LARGEST_LOG:
      raise Undefined('too large')  # or too small
    if ratio is None and not self.is_complex:
      whole = x.unique_fmpz()  # such as 3!
      ratio = None if whole is None else fractions.Fraction(int(whole))
    if ratio is not None and ratio.denominator == 1:
      return b ** int(ratio)
    self._check_argument(x)
    if not self.is_complex and b < 0:
      if ratio is None:
        raise Undefined('a power of a negative number')
      if ratio.denominator % 2 == 0:
        raise Outside('a root of a negative number')
      found = (-b) ** x
      return -found if ratio.numerator % 2 else found
    return b ** x

  def root(self, degree: Node, inside: Node) -> Any:
    n, b = exact(degree), self.value(inside)
    if n is None or n.denominator != 1 or not 1 < n < 1000:
      return self.power(inside, Node('/', (number(1), degree)))
    if b.contains(0) and small(b):
      return self.of(0)
    is_negative = b.real < 0 and small(b.imag)
    if is_negative and not self.is_complex and n % 2 == 0:
      raise Outside('a root of a negative number')
    if n == 2:
      return b.sqrt()
    if self.is_complex and is_negative:
      raise Undefined('a root that is the real or the principal one')
    if self.is_complex:
      return b ** self.of(1 / n)
    return -(-b).root(int(n)) if is_negative else b.root(int(n))

  def absolute(self, node: Node) -> Any:
    return self.of(abs(self.value(node)))

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
      self.spend(int(count))
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
      return x.log()
    if name == 'exp':
      return self.power(Node('name', ('e',)), nodes[0])
    self._check_argument(x, name)
    if name == 'cis':
      return x.cos() + self.of(flint.acb(0, 1)) * x.sin()
    if name.startswith('arc'):
      name = 'a' + name[3:]
      if name in _RECIPROCALS:
        name, x = _RECIPROCALS[name], 1 / x
    if name in ('asin', 'acos') and not self.is_complex and abs(x) > 1:
      raise Outside(name)
    if not hasattr(x, name):
      raise Undefined(name)
    return getattr(x, name)()

  def _check_argument(self, x: Any, name: str = '') -> None:
    """Raises `Undefined` where a value may be a limit but for the error."""
    if self.is_sure and not x.contains(0) and (
        abs(x) < _TINY or name and abs(x) > _HUGE
        or name.endswith('h') and abs(x) > 500):
      raise Undefined('below the error')  # cos 10^{-3000}, tanh 10000

  def log(self, base: Node, node: Node) -> Any:
    return self.value(node).log() / self.value(base).log()

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
    """Returns the text of a part, the same for equal parts."""
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


_METHODS = {  # of ops that have other names
    'number': 'of', '+': 'add', '*': 'multiply', '/': 'divide', '^': 'power',
    'abs': 'absolute', 'norm': 'absolute', '!': 'factorial',
    '!!': 'double_factorial'}
_RECIPROCALS = {'acot': 'atan', 'asec': 'acos', 'acsc': 'asin'}


def small(ball: Any) -> bool:
  """Tells whether the error of a ball is small, so that it says something."""
  return all(x.rad() < (1 + abs(x.mid())) * flint.arb(10) ** (
      -flint.ctx.dps // 2) for x in (ball.real, ball.imag))


def value(node: Node, point: Mapping[str, Any], is_complex: bool) -> Any:
  """Returns the value of an expression at a point, as a ball.

  Args:
    node: the expression.
    point: letter to its value, a fraction or ball.
    is_complex: whether to compute with complex numbers.

  Raises:
    Undefined: it has none, or none of a small error.
  """
  found = _Evaluator(point, is_complex).value(node)
  if not small(found):
    raise Undefined('a large error')
  return found


def approximate(node: Node) -> fractions.Fraction:
  """Returns the value of an expression without letters, to 25 digits.

  Raises:
    Undefined: it has none, or it is very large or small.
  """
  with flint.ctx.workdps(DIGITS):
    found = value(node, {}, has_imaginary(node))
    if not found.imag.contains(0):
      raise Undefined('no real number')
    if found.contains(0):
      return fractions.Fraction(0)
    if not 1e-300 < abs(found.real) < 1e300:
      raise Undefined('a very large or small number')
    return fractions.Fraction(found.real.mid().str(25, radius=False))
