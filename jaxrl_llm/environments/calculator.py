"""A calculator, as a tool."""

import ast
import operator

_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos}
_LONGEST = 200  # characters
_LARGEST = 1e15


def calculator(expression: str) -> str:
  """Computes an expression.

  Args:
    expression: Numbers with +, -, *, /, //, % and brackets, as in 3 * (4 + 5).
  """
  if len(expression) > _LONGEST:
    raise ValueError(f'the expression has more than {_LONGEST} characters')
  try:
    tree = ast.parse(expression.strip(), mode='eval').body
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    raise ValueError(f'{expression!r} is no expression of numbers') from None
  value = _value(tree)
  rounded = round(value, 10)
  return str(int(rounded) if rounded == int(rounded) else rounded)


def _value(tree: ast.expr) -> float:
  """Returns the value of an expression; ValueError if it has another part."""
  if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
    value = tree.value
  elif isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
    try:
      value = _OPERATORS[type(tree.op)](_value(tree.left), _value(tree.right))
    except ZeroDivisionError:
      raise ValueError('division by zero') from None
  elif isinstance(tree, ast.UnaryOp) and type(tree.op) in _OPERATORS:
    value = _OPERATORS[type(tree.op)](_value(tree.operand))
  else:
    raise ValueError('only numbers, + - * / // % and brackets are allowed')
  if not abs(value) <= _LARGEST:
    raise ValueError(f'a value is beyond {_LARGEST:.0e}')
  return value
