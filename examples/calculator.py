"""A calculator, as a tool."""

import ast
import decimal
import fractions
import operator
import re

_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos}
_LONGEST = 200  # characters
_LARGEST, _LEAST = 10**15, fractions.Fraction(1, 10**100)
# Python has others, such as 0x10. An exponent of more digits takes too long.
_NUMBER = re.compile(
    r'(?:[0-9][0-9_]*)?(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]{1,2})?')
_EXACT = 20  # digits of a result that is not rounded
_PLACES = 10  # of one that is, behind the point and the zeros there
_SMALLEST = -12  # power of ten; below, a result is written with one


def calculator(expression: str) -> str:
  """Computes an expression.

  Args:
    expression: Numbers with +, -, *, /, //, % and brackets, as in 3 * (4 + 5).
  """
  text = str(expression).strip()  # models also give a number as it is
  if len(text) > _LONGEST:
    raise ValueError(f'the expression has more than {_LONGEST} characters')
  try:
    tree = ast.parse(text, mode='eval').body
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    raise ValueError(f'{text!r} is no expression of numbers') from None
  if '#' in text:  # Python would leave out what follows
    raise ValueError('an expression has no #')
  return _written(_value(tree, text))


def _value(tree: ast.expr, text: str) -> fractions.Fraction:
  """Returns the exact value of an expression.

  Args:
    tree: a part of the expression.
    text: the whole expression.

  Raises:
    ValueError: it has a part that is not allowed, or too large a value.
  """
  if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
    number = ast.get_source_segment(text, tree) or ''
    if not _NUMBER.fullmatch(number):
      raise ValueError(f'{number} is no number such as 1000.5 or 1e-9')
    value = fractions.Fraction(number)
  elif isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
    try:
      value = fractions.Fraction(_OPERATORS[type(tree.op)](
          _value(tree.left, text), _value(tree.right, text)))
    except ZeroDivisionError:
      raise ValueError('division by zero') from None
  elif isinstance(tree, ast.UnaryOp) and type(tree.op) in _OPERATORS:
    value = _OPERATORS[type(tree.op)](_value(tree.operand, text))
  else:
    raise ValueError(
        'only numbers such as 1000.5, + - * / // % and brackets are allowed')
  if abs(value) > _LARGEST:
    raise ValueError(f'a value is beyond {_LARGEST:.0e}')
  if value and abs(value) < _LEAST:
    raise ValueError(f'a value is nearer to 0 than {float(_LEAST):.0e}')
  return value


def _written(value: fractions.Fraction) -> str:
  """Returns a value in decimals, rounded if it has many."""
  def divided(context):
    return context.divide(*map(decimal.Decimal, value.as_integer_ratio()))

  context = decimal.Context(prec=_EXACT)
  found = divided(context)
  power = min(found.adjusted(), 0)
  if context.flags[decimal.Inexact]:
    context = decimal.Context(prec=2 * _EXACT)
    found = divided(context).quantize(
        decimal.Decimal(1).scaleb(power - _PLACES), context=context)
  return f'{found:e}' if power < _SMALLEST else f'{found:f}'
