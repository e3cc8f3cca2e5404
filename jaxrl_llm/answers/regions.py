r"""Sets of real numbers: unions of intervals, however they are written.

(-\infty, 1) \cup (2, \infty), x < 1 or x > 2, and \mathbb{R} \setminus [1, 2]
are one set. A region is a sorted list of spans that do not touch.
"""

import fractions
from typing import NamedTuple

from jaxrl_llm.answers import evaluate, points
from jaxrl_llm.answers.grammar import negated, Node, number

INFINITY = Node('infinity', ())
REALS = Node('name', (r'\mathbb{R}',))


class End(NamedTuple):
  """An end of a span.

  Attributes:
    at: its place, for sorting: a fraction, or an infinity.
    node: its exact value.
    closed: whether it belongs to the span.
  """
  at: fractions.Fraction | float
  node: Node
  closed: bool


Span = tuple[End, End]


def region(node: Node) -> tuple[str, list[Span]] | None:
  """Returns the set of real numbers that a node stands for.

  Returns:
    The name of its variable ('' for none) and its spans; None if the node is no
    set of real numbers, or if its ends have no values.
  """
  try:
    found = _region(node)
  except (evaluate.Undefined, TypeError, OverflowError):
    return None
  return None if found is None else (found[0], _merged(found[1]))


def same(a: list[Span], b: list[Span]) -> bool:
  """Tells whether two regions are equal, by the values of their ends."""
  return len(a) == len(b) and all(
      x.closed == y.closed and (
          x.at == y.at if float('inf') in (abs(x.at), abs(y.at))
          else points.equal(x.node, y.node))
      for u, v in zip(a, b) for x, y in zip(u, v))


def _region(node: Node) -> tuple[str, list[Span]] | None:
  op, args = node
  if node == REALS:
    return '', [_span('()', negated(INFINITY), INFINITY)]
  if op == 'interval' or op == 'tuple' and len(args[1]) == 2:
    return (args[2] if op == 'interval' else ''), [_span(args[0], *args[1])]
  if op == 'set':
    return '', [_span('[]', item, item) for item in args]
  if op == 'relation':
    return _of_relation(node)
  if op not in ('cup', 'either', 'list', 'both', 'cap', 'setminus'):
    return None
  if op in ('list', 'both') and not all(
      p.op in ('interval', 'relation', 'either') for p in args) and not any(
          p.op == 'tuple' and p.args[0] != '()' for p in args):
    return None
  parts = [_region(part) for part in args]
  if None in parts or len({name for name, _ in parts} - {''}) > 1:
    return None
  name, regions = max(name for name, _ in parts), [spans for _, spans in parts]
  if op == 'setminus':
    regions[1] = _outside(_merged(regions[1]))
  common = [] if op in ('cup', 'either') else _common(regions)
  if common or op in ('both', 'cap', 'setminus'):
    return name, common  # 'x > 1, x < 2', but not 'x < 1, x > 2'
  return name, [span for spans in regions for span in spans]


def _of_relation(node: Node) -> tuple[str, list[Span]] | None:
  r"""Returns the region of x \ne a, or of bounds of |x - a|."""
  signs, members = node.args
  if len(signs) != 1 or evaluate.letters(members[1]):
    return None
  left, right = members
  if signs[0] in ('=', r'\ne') and left.op == 'name':
    point = [_span('[]', right, right)]
    return left.args[0], point if signs[0] == '=' else _outside(point)
  if left.op != 'abs' or signs[0] not in ('<', r'\le', '>', r'\ge'):
    return None
  name, *shift = left.args[0].args if left.args[0].op == '+' else (
      left.args[0],)
  if name.op != 'name' or len(shift) > 1 or any(map(evaluate.letters, shift)):
    return None
  center = negated(shift[0]) if shift else number(0)
  if evaluate.approximate(right) <= 0:
    return None
  low, high = (Node('+', (center, x)) for x in (negated(right), right))
  # What |x| > a leaves out is closed.
  brackets = '[]' if signs[0] in (r'\le', '>') else '()'
  inside = [_span(brackets, low, high)]
  return name.args[0], (
      inside if signs[0] in ('<', r'\le') else _outside(inside))


def _span(brackets: str, low: Node, high: Node) -> Span:
  return (End(_place(low), low, brackets[0] == '['),
          End(_place(high), high, brackets[1] == ']'))


def _place(node: Node) -> fractions.Fraction | float:
  if node == INFINITY:
    return float('inf')
  if node == negated(INFINITY):
    return -float('inf')
  return evaluate.approximate(node)


def _merged(spans: list[Span]) -> list[Span]:
  """Returns sorted spans that do not touch; empty ones are left out."""
  spans = sorted((
      s for s in spans if s[0].at < s[1].at
      or s[0].at == s[1].at and s[0].closed and s[1].closed),
      key=lambda s: (s[0].at, not s[0].closed))
  found: list[Span] = []
  for low, high in spans:
    if found and (low.at < found[-1][1].at or low.at == found[-1][1].at and (
        low.closed or found[-1][1].closed)):
      last = found[-1]
      end = max(last[1], high, key=lambda e: (e.at, e.closed))
      found[-1] = last[0], end
    else:
      found.append((low, high))
  return found


def _outside(spans: list[Span]) -> list[Span]:
  """Returns the rest of the real numbers; it may have empty spans."""
  found, low = [], End(-float('inf'), negated(INFINITY), False)
  for first, last in spans:
    found.append((low, first._replace(closed=not first.closed)))
    low = last._replace(closed=not last.closed)
  return [*found, (low, End(float('inf'), INFINITY, False))]


def _common(regions: list[list[Span]]) -> list[Span]:
  """Returns the intersection of several regions."""
  found = _merged(regions[0])
  for other in regions[1:]:
    found = _merged([
        (max(a[0], b[0], key=lambda e: (e.at, not e.closed)),
         min(a[1], b[1], key=lambda e: (e.at, e.closed)))
        for a in found for b in _merged(other)])
  return found
