r"""Shapes of answers: one node for each meaning, however it is written.

Bounds of a name become an interval, an expression with a double sign its two
values, a rule of a set the interval or the members that it stands for.
"""

import re
from typing import Any, Sequence

from jaxrl_llm.answers import evaluate, grammar, regions
from jaxrl_llm.answers.grammar import negated, Node, Unread

_INFINITY, _REALS = regions.INFINITY, regions.REALS


def shaped(node: Node) -> Node:
  """Returns a node in the shape that is compared."""
  op, args = node
  if op in ('list', 'set', 'either', 'both', 'cup'):
    return listed(op, [shaped(item) for item in args])
  if op == 'tuple':
    return Node(op, (args[0], tuple(map(shaped, args[1]))))

  if op in ('setminus', 'cap'):
    return Node(op, tuple(map(shaped, args)))
  if op == 'relation':
    return _relation(*args)
  if op == 'quantity':
    value = shaped(args[0])
    if value.op == 'list':
      return listed('list', [Node(op, (item, args[1])) for item in value.args])
    return Node(op, (value, args[1]))
  if op in grammar.WHOLES:
    return node
  return _both_signs(node)


def listed(op: str, items: Sequence[Node]) -> Node:
  """Returns a list; a name before its first part counts for all parts."""
  if op == 'either' and all(
      i.op not in grammar.WHOLES | {'interval'} for i in items):
    op = 'set'  # 1 or 2
  if op == 'both' and regions.region(Node(op, tuple(items))) is None or (
      op == 'either' and all(map(named, items))
      and len({named(i)[0] for i in items}) == 1):
    op = 'list'  # x > 1 and y > 2; x = 1 or x = 2
  if op == 'list' and len(items) > 1:  # f(x) = 2x for all real x
    if any(i.op == 'relation' and i.args[1][0].op == 'call' for i in items):
      items = [i for i in items if i != _REALS and not (
          i.op == 'relation' and i.args[0] == (r'\in',))]
  flat = []
  for item in items:
    flat += item.args if item.op in ('pair', op) and item.op != 'set' else [
        item]
  if len(flat) == 1 and op != 'set':
    return flat[0]
  if op == 'list' and flat:
    values = [named(item) or ('', item) for item in flat]
    first, _ = values[0]
    if first and all(name == first or not name and item.op != 'relation'
                     for name, item in values):
      return Node('values', (first, tuple(value for _, value in values)))
  return Node(op, tuple(flat))


def _both_signs(node: Node) -> Node:
  r"""Returns both values of an expression with one \pm as a 'pair'."""
  signs = [n.op for n in evaluate.parts(node) if n.op in ('pm', 'mp')]
  if not signs:
    return node
  if len({*signs}) < len(signs):
    raise Unread('several double signs')
  return Node('pair', tuple(_signed(node, plus) for plus in ('pm', 'mp')))


def _signed(node: Node, plus: str) -> Node:
  """Replaces double signs: by a plus those of one kind, the others by a minus.
  """
  def change(part: Node) -> Node:
    if part.op not in ('pm', 'mp'):
      return part
    return part.args[0] if part.op == plus else negated(part.args[0])

  return evaluate.rebuilt(node, change)


def name_of(node: Node) -> str:
  """Returns the name that an equation defines by this side, or ''."""
  op, args = node
  is_product = op == '*' and all(part.op == 'name' for part in args)
  if op in ('name', 'word', 'call') or (
      op == 'abs' or is_product) and form(node).isupper():  # |AB|, AB
    return form(node)
  return ''


def named(node: Node) -> tuple[str, Node] | None:
  """Returns the name and the value of an equation such as x = 5."""
  if node.op != 'relation' or node.args[0] != ('=',):
    return None
  left, value = node.args[1]
  name = name_of(left)
  if not name or name in evaluate.letters(value) or (
      value == Node('word', ('',))):
    return None
  return name, value


def _relation(signs: tuple[str, ...], members: tuple[Node, ...]) -> Node:
  """Returns bounds of a name as an interval, and other relations as they are.

  An equation of tuples is a list of equations; one with a double sign has two
  values.
  """
  members = tuple(shaped(member) for member in members)
  if signs == ('=',) and all(
      m.op == 'tuple' and m.args[0] == '()' for m in members):
    left, right = (m.args[1] for m in members)
    if len(left) == len(right) and all(map(name_of, left)):
      return Node('list', tuple(
          Node('relation', (signs, pair)) for pair in zip(left, right)))
  if signs == (r'\in',) and (name := name_of(members[0])) and (
      members[1].op in ('tuple', 'cup', 'set') or members[1] == _REALS):
    return _in(members[1], name)
  if signs == ('=',) and members[1].op == 'pair' and (
      name := name_of(members[0])):
    return Node('values', (name, members[1].args))
  return _interval(signs, members) or Node('relation', (signs, members))


def _in(node: Node, name: str) -> Node:
  """Returns an interval or a union of a named variable."""
  if node.op == 'cup':
    return Node('cup', tuple(_in(part, name) for part in node.args))
  return Node('interval', (*node.args[:2], name)) if node.op == 'tuple' and (
      len(node.args[1]) == 2) else node



def _interval(signs: Sequence[str], members: Sequence[Node]) -> Node | None:
  """Returns the interval that bounds of one name stand for, or None."""
  is_falling = set(signs) <= {'>', r'\ge'}
  if not is_falling and not set(signs) <= {'<', r'\le'}:
    return None
  names = [m.op == 'call' or m.op == 'name' and bool(evaluate.letters(m))
           for m in members]
  if names not in ([True, False], [False, True], [False, True, False]):
    return None
  closed = [sign in (r'\le', r'\ge') for sign in signs]
  if is_falling:
    members, closed, names = members[::-1], closed[::-1], names[::-1]
  if names[0]:
    members, closed = (negated(_INFINITY), *members), [False, *closed]
  if names[-1]:
    members, closed = (*members, _INFINITY), [*closed, False]
  low, middle, high = members
  name = name_of(middle)
  if any(m.op in grammar.WHOLES - {'quantity'} or name in evaluate.letters(m)
         for m in (low, high)):
    return None
  return Node('interval', ('(['[closed[0]] + ')]'[closed[1]], (low, high),
                           name))


def renamed(node: Any, names: dict[str, Node]) -> Any:
  """Replaces names by nodes."""
  return evaluate.rebuilt(node, lambda part: names.get(
      part.args[0], part) if part.op == 'name' else part)


def form(node: Any) -> str:
  """Returns one text for most values that are equal."""
  if not isinstance(node, Node):
    return ','.join(map(form, node)) if isinstance(node, tuple) else str(node)
  op, args = node
  if op not in grammar.WHOLES and (value := evaluate.exact(node)) is not None:
    return str(value)
  if op in ('list', 'either', 'both', 'set', 'cup', 'pair', 'values'):
    return ','.join(sorted(map(form, args[1] if op == 'values' else args)))
  if op in ('tuple', 'interval'):
    return args[0][0] + form(args[1]) + args[0][1]
  if op == 'quantity':
    return form(args[0]) + ('%' if args[1] == '%' else '')
  if op == 'relation':
    return ''.join(form(m) + s for m, s in zip(args[1], (*args[0], '')))
  if op == 'time':
    return args[0] + (f' {args[1]}m' if args[1] else '')
  if op in ('name', 'word'):
    return args[0]
  if op in ('+', '*'):
    return op.join(sorted(map(_grouped, args)))
  if op in ('/', '^'):
    return op.join(map(_grouped, args))
  if op == 'neg':
    return '-' + _grouped(args[0])
  if op in ('abs', 'norm'):
    return f'|{form(args[0])}|'
  if op == 'call':
    return f'{args[0]}({form(args[1])})'
  if op == 'based':
    return f'{args[0]}_{args[1]}'
  return f'{op}({form(args)})'


def _grouped(node: Node) -> str:
  text = form(node)
  return f'({text})' if node.op in ('+', '/', 'neg') or (
      node.op == 'number' and re.search('[-/]', text)) else text
