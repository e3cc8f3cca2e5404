"""Equality of answers, part by part.

`Comparison.same` compares two shapes (`shapes.py`). Lists and sets are compared
in any order, tuples and intervals in theirs, sets of real numbers as regions,
relations side by side or up to a factor, expressions by their values.
"""

import fractions
import itertools
import re
from typing import Any, Callable, Iterable, Iterator, Sequence

from jaxrl_llm.answers import evaluate, grammar, points, regions
from jaxrl_llm.answers.grammar import negated, Node, number
from jaxrl_llm.answers.shapes import form, listed, name_of, named, renamed

_COLLECTIONS = frozenset(
    ['set', 'list', 'values', 'cup', 'either', 'both', 'pair'])
_TURNED = {'>': '<', r'\ge': r'\le', r'\supset': r'\subset',
           r'\supseteq': r'\subseteq'}
# Kinds of which one at least stands for a set of real numbers.
_REGIONS = frozenset(['cup', 'either', 'both', 'setminus', 'cap', 'interval'])


class Comparison:
  """Compares the value of a reference with one that was found."""

  def __init__(self, tolerance: float, any_order: bool):
    self._tolerance, self._any_order = tolerance, any_order

  def equal(self, a: Node, b: Node) -> bool:
    """Compares whole answers; a list of one element is the element."""
    a, b = map(_single, _with_parameter(a, b))
    if b.op == 'set' != a.op and b.args and all(
        self.same(a, x) for x in b.args):
      return True  # 1/2 or 0.5
    return self.same(a, b)

  def same(self, a: Node, b: Node) -> bool:
    """Tells whether the value b equals the reference a."""
    if a == b:
      return True
    if _are_regions(a, b) and (x := regions.region(a)) and (
        y := regions.region(b)):
      return (x[0] == y[0] or '' in (x[0], y[0])) and regions.same(x[1], y[1])
    if 'relation' in (a.op, b.op):
      return self._relations(a, b)
    if {a.op, b.op} & _COLLECTIONS:
      return self._collections(a, b)
    if a.op in ('tuple', 'interval') and b.op in ('tuple', 'interval'):
      return self._tuples(a, b)
    if a.op in ('word', 'time') or b.op in ('word', 'time'):
      return self._words(a, b)
    if 'based' in (a.op, b.op):
      return _based(a, b)
    if 'ratio' in (a.op, b.op):
      return self._ratios(a, b)
    if a.op == b.op and a.op in ('cap', 'setminus'):
      return self._in_order(a.args, b.args) or (
          a.op == 'cap' and self.matched(a.args, b.args))
    return self._quantities(a, b)

  def _in_order(self, xs: Sequence[Node], ys: Sequence[Node]) -> bool:
    return len(xs) == len(ys) and all(map(self.same, xs, ys))

  def matched(
      self, xs: Iterable[Any], ys: Iterable[Any],
      same: Callable[[Any, Any], bool] | None = None) -> bool:
    """Tells whether two lists have equal elements in any order."""
    left, same = [*ys], same or self.same
    for x in xs:
      found = next((i for i, y in enumerate(left) if same(x, y)), None)
      if found is None:
        return False
      del left[found]
    return not left

  def _in_turn(self, xs: Sequence[Node], ys: Sequence[Node]) -> bool:
    return self._in_order(xs, ys) or self._any_order and self.matched(xs, ys)

  def _collections(self, a: Node, b: Node) -> bool:
    """Compares lists, sets and unions; a tuple may stand for a list."""
    if 'values' in (a.op, b.op):
      return self._values(a, b)
    if {a.op, b.op} == {'list', 'tuple'} and '()' in (a.args[0], b.args[0]):
      return self._in_turn(*(
          x.args[1] if x.op == 'tuple' else _ordered(x) for x in (a, b)))
    if a.op in ('tuple', 'interval') or b.op in ('tuple', 'interval'):
      return a.op == 'tuple' and self._any_order and b.op == 'set' and (
          self.matched(a.args[1], b.args))
    kinds = {a.op, b.op}
    if not kinds <= _COLLECTIONS or len(kinds) > 1 and (
        kinds & {'cup', 'either', 'both'}):
      return False
    names = [_names(x) for x in (a, b)]
    if names == [False, True]:  # x_1 = 2, x_2 = 3
      return _are_indexed(b) and self.matched(a.args, _ordered(b))
    if names == [True, False]:
      # Values of several variables have the order of their names.
      return b.op == 'list' and self._in_order(*map(_ordered, (a, b)))
    return self.matched(a.args, b.args)

  def _values(self, a: Node, b: Node) -> bool:
    """Compares the values of one name, as of x = 1 or x = 2."""
    names = [x.args[0] if x.op == 'values' else '' for x in (a, b)]
    if any(x.op not in ('values', 'list', 'set', 'pair') or _names(x)
           for x in (a, b)) or all(names) and not _same_name(*names):
      return False
    return self.matched(*(
        x.args[1] if x.op == 'values' else x.args for x in (a, b)))

  def _tuples(self, a: Node, b: Node) -> bool:
    """Compares tuples and intervals with their brackets."""
    if a.args[0] != b.args[0]:
      return False
    names = [x.args[2] if x.op == 'interval' else '' for x in (a, b)]
    if all(names) and names[0] != names[1]:
      return False
    return (self._in_turn if a.op == 'tuple' else self._in_order)(
        a.args[1], b.args[1])

  def _words(self, a: Node, b: Node) -> bool:
    if a.op == b.op == 'time':
      if a.args[1] == 'p' and not b.args[1]:
        hour, _, rest = a.args[0].partition(':')
        return b.args[0] == f'{int(hour) % 12 + 12}:{rest}'
      return a.args[0] == b.args[0] and a.args[1] in ('', b.args[1])
    if 'time' in (a.op, b.op) and 'word' not in (a.op, b.op):
      a, b = map(_ratio, (a, b))
      return 'time' not in (a.op, b.op) and self._ratios(a, b)
    x, y = (re.sub(r'[\s*\\]', '', form(v)) for v in (a, b))
    return x == y or len(x) > 3 and x.lower() == y.lower()

  def _ratios(self, a: Node, b: Node) -> bool:
    """Compares ratios; one of two parts may be a quotient."""
    if a.op != b.op:
      ratio, other = (a, b) if a.op == 'ratio' else (b, a)
      return len(ratio.args) == 2 and other.op not in grammar.WHOLES and (
          self._expressions(Node('/', ratio.args), other))
    pairs = [*zip(a.args, b.args)]
    return len(a.args) == len(b.args) and all(  # 0:0 is no 1:2
        self._expressions(x, number(0)) == self._expressions(y, number(0))
        for x, y in pairs) and all(
            self._expressions(Node('*', (u, y)), Node('*', (v, x)))
            for (x, y), (u, v) in itertools.combinations(pairs, 2))

  # Quantities and expressions.

  def _quantities(self, a: Node, b: Node) -> bool:
    """Compares expressions with their units; a missing unit is none."""
    (x, u), (y, v) = _quantity(a), _quantity(b)
    units, plain = {u, v}, (_unitless(x, u), _unitless(y, v))
    if len(units) == 1 or units == {'?', ''}:
      return self._expressions(x, y)
    if units == {'degree', 'rad'}:
      return self._expressions(*plain)
    if 'degree' in units and any(
        unit == '' or unit.startswith('degree_') for unit in units):
      # What has pi in it and no unit is in radians.
      is_bare = r'\pi' not in form(x if u == '' else y)
      return is_bare and self._expressions(x, y) or '' in units and not (
          x.op == y.op == 'number') and self._expressions(*plain)
    if '%' in units:
      # What percentage, may be the question.
      return '' in units and (
          not evaluate.letters(x) and self._expressions(x, y)
          or self._expressions(*plain))
    return '' in units and self._expressions(x, y)

  def _expressions(self, a: Node, b: Node) -> bool:
    if a.op in grammar.WHOLES or b.op in grammar.WHOLES:
      return False
    if _has_infinity(a) or _has_infinity(b):
      return a == b
    if _has_rows(a) or _has_rows(b):
      return self._rows(a, b)
    # V R^{-1} is V / R, if one is written so.
    is_ordered = _is_ordered(a) and all(
        part.op != '/' for part in evaluate.parts(b))
    if _sorted(a, not is_ordered) == _sorted(b, not is_ordered):
      return True
    if is_ordered:
      return False
    if _PARAMETER in evaluate.letters(a) and points.same_steps(
        a, b, _PARAMETER):
      return True
    return points.equal(a, _with_constant(b, a), self._tolerance)

  def _rows(self, a: Node, b: Node) -> bool:
    """Compares matrices, or vectors, by their elements."""
    x, y = _elements(a), _elements(b)
    return x is not None and y is not None and x[0] == y[0] and all(
        not (_has_infinity(p) or _has_infinity(q)) and points.equal(
            p, q, self._tolerance) for p, q in zip(x[1], y[1]))

  # Relations.

  def _relations(self, a: Node, b: Node) -> bool:
    """Compares a relation with another one or with a value."""
    if 'interval' in (a.op, b.op):
      a, b = (_bound(x) for x in (a, b))
      return a.op == b.op and self._alike(a, b)
    if a.op == b.op:
      b = _with_argument(b, a)
      x, y = named(a), named(b)
      if x and y and _same_name(x[0], y[0]):
        return self.same(x[1], y[1])
      if self._alike(a, b):
        return True
      x, y = self._value(a, False), self._value(b, False)
      return None not in (x, y) and _same_name(x[0], y[0]) and self.same(
          x[1], y[1])
    if a.op == 'relation':
      x = self._value(a, all(  # 0.5 = 50%
          _quantity(m)[0].op == 'number' for m in a.args[1]))
      return x is not None and self.same(x[1], b)
    if b.args[0] == (r'\in',) and name_of(b.args[1][0]):
      return self.same(a, b.args[1][1])
    y = self._value(b, True)
    return y is not None and (self.same(a, y[1]) or self._is_rounded(a, b))

  def _value(self, node: Node, is_found: bool) -> tuple[str, Node] | None:
    """Returns the name and the value that an equation ends with.

    A chain such as x = 2 + 3 = 5 stands for its last member if the members
    behind a name are equal; 6 = 5 stands for nothing. Of a value and its
    approximation the value counts.
    """
    signs, members = node.args
    if not set(signs) <= {'=', r'\approx'}:
      return None
    name = name_of(members[0])
    if is_found and members[0].op == '+' and all(
        part.op == 'name' for part in members[0].args):
      name = form(members[0])  # m + n, whose value may be asked for
    rest = members[1:] if name else members
    signs = signs[1:] if name else signs
    if not name and not is_found or name in evaluate.letters(tuple(rest)):
      return None
    exact = rest[:1 + [*signs, r'\approx'].index(r'\approx')]
    if not all(self.same(x, y) for x, y in zip(exact, exact[1:])):
      return None
    return name or '', exact[-1]

  def _is_rounded(self, a: Node, b: Node) -> bool:
    r"""Tells whether b, such as \sqrt{10}\approx 3.16, ends with a rounded."""
    (*_, sign), (*_, before, last) = b.args
    if sign != r'\approx' or last.op != 'number' or not self.same(
        a, last) or name_of(before) or before.op in grammar.WHOLES:
      return False
    step = fractions.Fraction(1, last.args[0].denominator)
    try:
      exact = evaluate.approximate(before)
      return abs(exact - last.args[0]) <= step * 51 / 100
    except (evaluate.Undefined, TypeError):
      return False

  def _alike(self, a: Node, b: Node) -> bool:
    """Compares relations side by side, or up to a factor that is not 0."""
    is_trivial = [len({*x.args[1]}) == 1 for x in (a, b)]  # 0 = 0
    return is_trivial != [False, True] and self.matched(
        _pairs(a), _pairs(b), self._pair)

  def _pair(self, a: tuple[str, Node, Node], b: tuple[str, Node, Node]) -> bool:
    """Compares two relations of two members."""
    (sign, *x), (other, *y) = (
        (s, _hundredths(p), _hundredths(q)) for s, p, q in (a, b))
    if sign != other:
      return False
    if sign == r'\equiv':
      return self._congruent(x, y)
    if self._in_order(x, y):
      return True
    is_symmetric = sign in ('=', r'\ne', r'\approx', r'\sim', r'\perp',
                            r'\parallel', r'\cong')
    if is_symmetric and self._in_order(x, y[::-1]):
      return True
    if sign not in ('=', r'\ne', '<', r'\le') or any(
        m.op in grammar.WHOLES | {'tuple', 'interval', 'pair'} or _has_rows(m)
        or _has_infinity(m) or _is_ordered(m) for m in (*x, *y)):
      return False
    difference = [Node('+', (m[0], negated(m[1]))) for m in (x, y)]
    found = points.ratio_sign(*difference)
    return found > 0 or found < 0 and sign in ('=', r'\ne')

  def _congruent(self, x: Sequence[Node], y: Sequence[Node]) -> bool:
    unnamed = Node('word', ('',))
    if unnamed not in (x[0], y[0]) and not self.same(x[0], y[0]):
      return False
    if x[1].op != 'mod' or y[1].op != 'mod':
      return x[1].op == y[1].op and self.same(x[1], y[1])
    (a, m), (b, n) = x[1].args, y[1].args
    values = [evaluate.exact(v) for v in (a, b, m, n)]
    if None in values:
      return self._in_order((a, m), (b, n))
    return values[2] == values[3] != 0 and (values[0] - values[1]) % (
        values[2]) == 0


def _are_regions(a: Node, b: Node) -> bool:
  """Tells whether two nodes are compared as sets of real numbers.

  A set of numbers alone is none of these, since {1, 2} is no union.
  """
  return bool({a.op, b.op} & _REGIONS or regions.REALS in (a, b)) and (
      'set' not in (a.op, b.op))


def _bound(node: Node) -> Node:
  """Returns the relation that an interval with one end was read from."""
  if node.op != 'interval' or not node.args[2]:
    return node
  (left, right), (low, high), text = node.args
  name = Node('name', (text,))
  if high == regions.INFINITY:
    return Node('relation', ((r'\le' if left == '[' else '<',), (low, name)))
  if low == negated(regions.INFINITY):
    return Node('relation', ((r'\le' if right == ']' else '<',), (name, high)))
  return node


def _with_argument(node: Node, reference: Node) -> Node:
  """Renames the argument in f(t) = t + 1 as in the reference."""
  calls = [x.args[1][0] for x in (node, reference)]
  if all(c.op == 'call' and len(c.args[1]) == 1 and c.args[1][0].op == 'name'
         for c in calls) and calls[0].args[0] == calls[1].args[0]:
    old, new = (c.args[1][0] for c in calls)
    if new.args[0] not in evaluate.letters(node) and old.args[0].islower():
      return renamed(node, {old.args[0]: new})
  return node


def _with_constant(node: Node, reference: Node) -> Node:
  """Gives a constant of integration the name that the reference has."""
  constant = Node('name', ('C',))
  if not node.op == reference.op == '+' or constant not in reference.args:
    return node
  free = [term for term in node.args if term not in reference.args and (
      term.op == 'name' and term.args[0] in ('c', 'K', 'k', 'C_1', 'c_1'))]
  return renamed(node, {free[0].args[0]: constant}) if len(
      free) == 1 and constant not in node.args else node


def _hundredths(node: Node) -> Node:
  """Returns the value of a percentage; in a relation it is no percent."""
  return _unitless(*node.args) if node.op == 'quantity' and (
      node.args[1] == '%') else node


def _ratio(node: Node) -> Node:
  """Returns 3:10, which is read as a time, as a ratio."""
  if node.op != 'time' or node.args[1] or ':0' in node.args[0]:
    return node
  return Node('ratio', tuple(number(int(x)) for x in node.args[0].split(':')))


def _unitless(node: Node, unit: str) -> Node:
  """Returns the number of a value in degrees or percent."""
  return Node('degree', (node,)) if unit == 'degree' else Node(
      '/', (node, number(100))) if unit == '%' else node


def _single(node: Node) -> Node:
  """Returns the element of a set or list of one element."""
  if node.op not in ('set', 'list') or len(node.args) != 1:
    return node
  item = node.args[0]
  return node if named(item) or item.op in (
      'set', 'tuple', 'interval', 'cup', 'name') else item


def _ordered(node: Node) -> list[Node]:
  """Returns the elements of a list; x = 1, y = 2 in the order of the names."""
  if not _names(node):
    return list(node.args)
  pairs = [named(item) for item in node.args]
  if all(len(name) == 1 for name, _ in pairs):
    pairs.sort(key=lambda pair: pair[0])
  return [value for _, value in pairs]


def _are_indexed(node: Node) -> bool:
  """Tells whether the names of a list are x_1, x_2 and so on."""
  names = [named(item)[0] for item in node.args]
  return len({name.partition('_')[0] for name in names}) == 1 and all(
      re.fullmatch('[a-z]_[0-9]+', name) for name in names)


def _names(node: Node) -> bool:
  """Tells whether a list has equations of different names."""
  return node.op == 'list' and all(map(named, node.args)) and (
      len({named(item)[0] for item in node.args}) > 1)


_PARAMETER = '#k'
# What equations with families of solutions are solved for.
_UNKNOWNS = {'x', 'z', r'\theta', r'\alpha', r'\beta', r'\phi'}


def _undeclared(node: Node) -> tuple[Node, str]:
  r"""Returns a node without 'k \in \mathbb{Z}', and k; or '' for none."""
  items = node.args if node.op in ('list', 'both', 'either') else (node,)
  integers = [i for i in items if i.op == 'relation' and i.args[0] == (r'\in',)
              and i.args[1][1].args == (r'\mathbb{Z}',)
              and i.args[1][0].op == 'name']
  if len(integers) != 1 or len(items) < 2:
    return node, ''
  return listed(node.op, [i for i in items if i is not integers[0]]), (
      integers[0].args[1][0].args[0])


def _with_parameter(a: Node, b: Node) -> tuple[Node, Node]:
  r"""Gives the integer k of x = a + 2k\pi one name in both answers.

  One of them says that it is an integer, or both are periodic solutions for an
  unknown. In S = (n - 2)\pi and a_n = 2n + 1, n is a variable.
  """
  found = [_undeclared(x) for x in (a, b)]
  said = {letter for _, letter in found} - {''}
  solved = [{n.args[0] if n.op == 'values' else form(n.args[1][0])
             for n in evaluate.parts(x) if n.op in ('values', 'relation')}
            for x, _ in found]
  if not (said or solved[0]) or (
      solved[0] | solved[1]) - _UNKNOWNS:
    return a, b
  is_periodic = all(any(n.op == 'degree' or n.args == (r'\pi',)
                        for n in evaluate.parts(x)) for x, _ in found)
  names = []
  for x, letter in found:
    free = evaluate.letters(x) & {*'jklmn', *said}
    if not letter and len(free) == 1 and (is_periodic or free <= said):
      letter, = free
    names.append(letter)
  if '' in names:
    return a, b
  x, y = (renamed(x, {name: Node('name', (_PARAMETER,))})
          for (x, _), name in zip(found, names))
  return x, y


def _same_name(a: str, b: str) -> bool:
  """Tells whether two names are one; y may stand for f(x)."""
  return a == b or {a, b} == {'y', 'f(x)'}


def _pairs(node: Node) -> Iterator[tuple[str, Node, Node]]:
  """Yields the relations of a chain, larger sides behind smaller ones."""
  signs, members = node.args
  for sign, x, y in zip(signs, members, members[1:]):
    if sign in _TURNED:
      yield _TURNED[sign], y, x
    else:
      yield sign, x, y


def _quantity(node: Node) -> tuple[Node, str]:
  """Returns a value and its unit, which may be 'degree' or ''."""
  value, unit = node.args if node.op == 'quantity' else (node, '')
  if value.op == 'degree':
    return value.args[0], 'degree'
  if node.op == 'neg' and node.args[0].op == 'degree':
    return negated(node.args[0].args[0]), 'degree'
  return value, 'degree' if unit == 'deg' else unit


def _based(a: Node, b: Node) -> bool:
  """Compares numbers with a base; it may be missing where it is known."""
  if a.op == b.op:
    return a.args == b.args
  based, other = (a, b) if a.op == 'based' else (b, a)
  if based is b and based.args[1] != 10:
    return False
  return form(other).replace('*', '').upper() == based.args[0]


def _has_infinity(node: Node) -> bool:
  """Tells whether infinity is a part of an expression, not only a bound."""
  return any(part.op == 'infinity' for part in evaluate.parts(node))


def _is_ordered(node: Node) -> bool:
  """Tells whether capitals may be matrices, as in A^{-1}B^{-1} and AB - BA."""
  products = set()
  for part in evaluate.parts(node):
    if part.op == '*':
      bases = [f.args[0] if f.op == '^' else f for f in part.args]
      capitals = tuple(
          b for b in bases if any(name[0].isupper() and len(name) == 1
                                  for name in evaluate.letters(b)))
      if (len(capitals) > 1 or len({*bases}) < len(bases)) and any(
          f.op == '^' and f.args[1] == number(-1) for f in part.args):
        return True
      products.add(capitals)
  return any(p[::-1] in products for p in products if p != p[::-1])


def _sorted(node: Any, products: bool) -> Any:
  """Sorts the terms of sums, and the factors of products if asked to."""
  def change(part: Node) -> Node:
    if (value := evaluate.exact(part)) is not None:
      return number(value)
    if part.op == '+' or part.op == '*' and products:
      return Node(part.op, tuple(sorted(part.args, key=repr)))
    return part

  return evaluate.rebuilt(node, change)


def _has_rows(node: Node) -> bool:
  return node.op in ('matrix', 'tuple') or node.op in (
      '+', '*', '/', '^', 'neg') and any(map(_has_rows, node.args))


def _elements(node: Node) -> tuple[tuple[str, int, int], list[Node]] | None:
  """Returns kind, rows and columns of a matrix or vector, and its elements.

  None if an expression is neither.
  """
  op, args = node
  if op == 'matrix':
    return (op, len(args), len(args[0])), [*itertools.chain(*args)]
  if op == 'tuple':
    return (op, 1, len(args[1])), [*args[1]]
  if op == 'neg':
    return _mapped(_elements(args[0]), negated)
  if op == '/' and not _has_rows(args[1]):
    return _mapped(_elements(args[0]), lambda x: Node('/', (x, args[1])))
  if op == '*':
    matrices = [arg for arg in args if _has_rows(arg)]
    if len(matrices) == 1:
      scalars = tuple(arg for arg in args if arg is not matrices[0])
      return _mapped(
          _elements(matrices[0]), lambda x: Node('*', (*scalars, x)))
  if op == '+':
    parts = [_elements(arg) for arg in args]
    if None not in parts and len({size for size, _ in parts}) == 1:
      return parts[0][0], [
          Node('+', terms) for terms in zip(*(found for _, found in parts))]
  return None


def _mapped(found: Any, function: Callable[[Node], Node]) -> Any:
  return found and (found[0], [*map(function, found[1])])
