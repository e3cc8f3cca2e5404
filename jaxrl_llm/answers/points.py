r"""Equality of expressions, by their values at points.

Two expressions are different if their values (`evaluate.py`) do not meet at
some point. They are equal if they meet at `_ENOUGH`, with 30 digits and then
with many more. Points lie where both have values, on all sides of where a root,
a logarithm or a modulus may bend, which are found by bisection. Expressions of
which one has a real value where the other has none are not equal.
"""

import fractions
import itertools
from typing import Any, Iterable, Iterator, Sequence

import flint

from jaxrl_llm.answers import evaluate
from jaxrl_llm.answers.evaluate import drawn, exact, letters, parts, Undefined
from jaxrl_llm.answers.grammar import negated, Node, number

_ENOUGH = 8  # points where two expressions with letters must agree
_STEPPED = frozenset(['floor', 'ceil', 'gcd', 'lcm'])
_BENT = frozenset(
    'abs norm max min sgn root ln log arcsin arccos arctan arccot arcsec '
    'arccsc'.split())
_COMPLEX_NAMES = frozenset('zw')
_WIDE = (7, 23, 61, 260, 2700, 71_000)  # sizes of points far from 0
# Where bends are looked for along a letter: 0 and sizes from 1/8 to 900,000.
_GRID = sorted(
    [0.0, *(sign * 1.5**i / 8 for i in range(40) for sign in (1, -1))])
_BISECTIONS, _MOST_BENDS = 40, 12
# Integers at which p + q k is seen to be linear: |k| and k + [k/10] are not.
_ON_LINE = (0, 1, 2, -3, 11, -97, 1013, -100_003)
_WORK = 500_000  # nodes that a comparison may visit
_NEAR = [fractions.Fraction(sign * x, 997) for sign in (1, -1) for x in (
    1, 29, 87, 387, 1709, 5303, 21_011, 90_007, 500_009)]

Point = dict[str, Any]


def _kinds(nodes: tuple[Node, ...]) -> set[str]:
  """Returns the ops of expressions and the names of their functions."""
  kinds = {n.args[0] if n.op in ('function', 'accent') else n.op
           for n in parts(nodes)}
  return kinds | ({'root'} if any(map(_is_root, parts(nodes))) else set())


def _size(*nodes: Node) -> int:
  return sum(1 for _ in parts(nodes))


def _is_root(node: Node) -> bool:
  """Tells whether a power may have no real value for a negative base."""
  if node.op != '^' or not letters(node.args[0]):
    return False
  found = exact(node.args[1])
  return found is None or found.denominator % 2 == 0


def _usual(names: Sequence[str]) -> Iterator[Point]:
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
  for i, size in enumerate(_WIDE):
    for sign in (1, -1):
      yield {name: size * drawn(f'{name} {i} wide', .8, 1.2) * (
          sign if j == 0 or drawn(f'{name} {i} side', 0, 1) < .5 else 1)
             for j, name in enumerate(names)}
  if len(names) > 1:
    for i in range(8):
      yield {name: drawn(f'{name} {i} positive', .11, 3.9) for name in names}


def _insides(nodes: tuple[Node, ...]) -> Iterator[Node]:
  """Yields expressions that are zero where a root or modulus bends or ends."""
  for node in reversed([*parts(nodes)]):  # inner ones first
    op, args = node
    name = args[0] if op == 'function' else op
    if name in ('abs', 'norm'):
      yield args[0]
    elif name in ('root', 'log'):
      yield args[1]
    elif name in ('max', 'min') and len(args[1]) > 1:
      yield Node('+', (args[1][0], negated(args[1][1])))
    elif name in ('ln', 'sgn'):
      yield args[1][0]
    elif name in ('arcsin', 'arccos', 'arcsec', 'arccsc'):
      for bound in (1, -1):
        yield Node('+', (args[1][0], number(bound)))
    elif _is_root(node):
      yield args[0]


def _near_bends(
    names: Sequence[str], nodes: tuple[Node, ...]) -> Iterator[Point]:
  """Yields points on all sides of where expressions bend."""
  insides = dict.fromkeys(i for i in _insides(nodes) if letters(i))
  if 300 * len(names) * sum(map(_size, insides)) > _WORK:
    raise Undefined('too long')
  lines: dict[str, list[fractions.Fraction]] = {name: [] for name in names}
  for base in itertools.islice(_usual(names), 1 + (len(names) > 1)):
    for name in names:
      bends: list[float] = []
      for inside in insides:
        if name in letters(inside):
          sizes = _numbers((inside,))
          bends += _bends(inside, name, base, [
              *bends[-_MOST_BENDS:], *sizes, *(-size for size in sizes)])
      line = _beside(sorted({*bends})[:_MOST_BENDS])
      lines[name] += line
      for at in line:
        yield {**base, name: at}
  if len(names) > 1:
    for i in range(48):
      yield {name: line[int(drawn(f'{name} {i} near', 0, len(line)))]
             for name, line in lines.items()}


def _beside(bends: Sequence[float]) -> list[fractions.Fraction]:
  """Returns places near and between bends."""
  found = sorted({
      fractions.Fraction(b).limit_denominator(10**5) for b in bends or [0]})
  inner = [a + (b - a) * fractions.Fraction(2 * i + 1, 17)
           for a, b in zip(found, found[1:]) for i in range(_ENOUGH)]
  return inner + [b + step for b in found for step in _NEAR]


def _bends(
    inside: Node, name: str, base: Point, known: Sequence[float]
) -> Iterator[float]:
  """Yields where an expression crosses, touches or leaves the real numbers.

  Args:
    inside: the expression.
    name: the letter to change.
    base: values of the other letters.
    known: where to look more closely.
  """
  def at(x: float) -> float | None:
    with flint.ctx.workdps(evaluate.DIGITS):
      point = {**base, name: fractions.Fraction(x)}
      found = _value(inside, point, False)
    return None if isinstance(found, Undefined) else float(found.mid())

  grid = sorted({*_GRID[::1 if len(base) == 1 else 3], *(
      b + d for b in known for d in (-.3, -.02, .02, .3))})
  seen = [(x, at(x)) for x in grid]
  for (a, u), (b, v) in zip(seen, seen[1:]):
    if _side(u) != _side(v):
      for _ in range(_BISECTIONS):
        middle = (a + b) / 2
        a, b = (a, middle) if _side(at(middle)) == _side(v) else (middle, b)
      yield b
  for (a, u), (_, v), (b, w) in zip(seen, seen[1:], seen[2:]):
    if None not in (u, v, w) and _side(u) == _side(v) == _side(w) and (
        abs(v) <= min(abs(u), abs(w))):
      for _ in range(_BISECTIONS):
        low, high = (2 * a + b) / 3, (a + 2 * b) / 3
        x, y = at(low), at(high)
        if x is None or y is None:
          break
        a, b = (a, high) if abs(x) < abs(y) else (low, b)
      yield (a + b) / 2


def _side(value: float | None) -> int:
  return 0 if value is None else 1 if value >= 0 else -1


def _near_steps(
    names: Sequence[str], nodes: tuple[Node, ...]) -> Iterator[Point]:
  """Yields integers about the numbers of the expressions, such as moduli."""
  numbers = sorted({abs(int(n.args[0])) for n in parts(nodes)
                    if n.op == 'number' and 9 < abs(n.args[0]) < 10**9})[:8]
  near = [i for c in numbers for i in (c // 2, c - 1, c, c + 1, 2 * c + c // 3)]
  for i, at in enumerate(near):
    yield {name: fractions.Fraction(
        near[(i + j * (1 + i // len(names))) % len(near)] if j else at)
           for j, name in enumerate(names)}


def _near_numbers(
    names: Sequence[str], nodes: tuple[Node, ...]) -> Iterator[Point]:
  """Yields points near and between the numbers of the expressions."""
  numbers = sorted({x for n in _numbers(nodes) for x in (n, 1 - n % 1)})[-6:]
  near = _beside(sorted({sign * n for n in (0, *numbers) for sign in (1, -1)}))
  for i, at in enumerate(near):
    yield {name: at if len(names) == 1 else near[int(drawn(
        f'{name} {i} near', 0, len(near)))] for name in names}


def _numbers(nodes: tuple[Node, ...]) -> set[float]:
  """Returns the sizes of the numbers of expressions."""
  found = (exact(n) for n in parts(nodes) if not letters(n))
  return {float(abs(x)) for x in found if x is not None and abs(x) < 10**15}


def integer_points(names: Sequence[str], count: int) -> Iterator[Point]:
  """Yields points of positive integers; those of one name are in a row."""
  for i in range(count):
    yield {name: fractions.Fraction(
        i + 1 if len(names) == 1
        else int(drawn(f'{name} int {i}', 2, 9 if count < 24 else 24)))
           for name in names}


def _point_sets(
    names: Sequence[str], nodes: tuple[Node, ...], kinds: set[str],
    is_complex: bool) -> Iterator[Iterable[Point]]:
  """Yields sets of points; later ones are tried if the earlier say too little.
  """
  if not names:
    yield [{}]
    return
  if kinds & _STEPPED:
    yield itertools.chain(
        integer_points(names, 64), _near_steps(names, nodes),
        _near_numbers(names, nodes))
  elif kinds & _BENT and not is_complex:
    yield itertools.chain(_usual(names), _near_bends(names, nodes))
  else:
    yield _usual(names)
  yield integer_points(names, 12)


def _with_complex(point: Point, kinds: set[str]) -> Point:
  """Gives z and w complex values where a modulus or conjugate is taken."""
  if not kinds & {'abs', 'Re', 'Im', 'arg', r'\bar'}:
    return point
  return {name: (value, drawn(f'{name} {value}'))
          if name in _COMPLEX_NAMES else value for name, value in point.items()}


def _value(node: Node, point: Point, is_complex: bool) -> Any:
  """Returns a value, or the error of an expression that has none."""
  try:
    return evaluate.value(node, point, is_complex)
  except Undefined as error:
    return error


def _samples(
    a: Node, b: Node, names: Sequence[str], is_complex: bool
) -> Iterator[tuple[Point, Any, Any]]:
  """Yields points where two expressions have values, and the values.

  Raises:
    Undefined: one has a real value where the other has none, or they take long.
  """
  kinds, count, work, size = _kinds((a, b)), 0, 0, _size(a, b)
  is_simple = not kinds & (_BENT | _STEPPED)
  for point_set in _point_sets(names, (a, b), kinds, is_complex):
    for point in point_set:
      point = _with_complex(point, kinds)
      work += size
      if work > _WORK:
        raise Undefined('too long')
      with flint.ctx.workdps(evaluate.DIGITS):
        x, y = (_value(node, point, is_complex) for node in (a, b))
      errors = [v for v in (x, y) if isinstance(v, Undefined)]
      if errors:
        # Several letters mostly stand for positive quantities.
        if len(errors) == 1 and not is_complex and (
            isinstance(errors[0], evaluate.Outside) or 'abs' in kinds) and (
                len(names) == 1 or all(v > 0 for v in point.values())):
          raise Undefined('one has no value')  # ln x is not ln |x|
        continue
      yield point, x, y
      count += 1
      if is_simple and count == _ENOUGH:
        return
    if count >= _ENOUGH:
      return


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
  names = sorted(letters((a, b)))
  kinds = _kinds((a, b))
  is_complex = evaluate.has_imaginary((a, b)) or bool(
      _COMPLEX_NAMES & {*names} and kinds & {'abs', 'Re', 'Im', r'\bar'})
  seen = []
  try:
    for point, x, y in _samples(a, b, names, is_complex):
      if not (x - y).contains(0):
        return not names and bool(abs(x - y) <= abs(x) * tolerance)
      seen.append(point)
  except Undefined:
    return False
  if len(seen) < (_ENOUGH if names else 1):
    return False
  surely = _surely(a, b, seen, is_complex, 1 + bool(names))
  return bool(surely) and all((x - y).contains(0) for x, y in surely)


def _surely(
    a: Node, b: Node, points: Sequence[Point], is_complex: bool, count: int
) -> list[tuple[Any, Any]]:
  """Returns the values at some points with many digits, [] if there are fewer.
  """
  found: list[tuple[Any, Any]] = []
  with flint.ctx.workdps(evaluate.SURE):
    for point in points:
      x, y = (_value(node, point, is_complex) for node in (a, b))
      if not isinstance(x, Undefined) and not isinstance(y, Undefined):
        found.append((x, y))
      if len(found) == count:
        return found
  return []


def same_steps(a: Node, b: Node, name: str) -> bool:
  """Tells whether a and b, linear in an integer, have the same values.

  These are all numbers p + q k: q may have another sign, and p may differ by a
  multiple of q.
  """
  if letters(a) != letters(b) or letters(a) != {name}:
    return False
  is_complex = evaluate.has_imaginary((a, b))
  try:
    with flint.ctx.workdps(evaluate.SURE):
      (p, *x), (r, *y) = (
          [evaluate.value(node, {name: k}, is_complex) for k in _ON_LINE]
          for node in (a, b))
      q, s = x[0] - p, y[0] - r
      is_line = all((first + k * step - found).contains(0)
                    for first, step, rest in ((p, q, x), (r, s, y))
                    for k, found in zip(_ON_LINE[1:], rest))
      return is_line and not q.contains(0) and (
          q * q - s * s).contains(0) and (
              ((p - r) / q).unique_fmpz() is not None)
  except Undefined:
    return False


def ratio_sign(a: Node, b: Node) -> int:
  """Returns the sign of the constant c != 0 for which a = c b, 0 for none."""
  names = sorted(letters(a))
  if letters(b) != letters(a) or not names:
    return 0
  is_complex, seen = evaluate.has_imaginary((a, b)), []
  try:
    for point, x, y in _samples(a, b, names, is_complex):
      if x.contains(0) != y.contains(0):
        return 0
      if not x.contains(0):
        seen.append((point, x, y))
        if not (x * seen[0][2] - y * seen[0][1]).contains(0):
          return 0
  except Undefined:
    return 0
  if len(seen) < _ENOUGH - 2:  # at others both are 0
    return 0
  found = _surely(a, b, [point for point, *_ in seen], is_complex, 3)
  if not found or not all(
      (x * found[0][1] - y * found[0][0]).contains(0) for x, y in found):
    return 0
  return 1 if (found[0][0] / found[0][1]).real > 0 else -1
