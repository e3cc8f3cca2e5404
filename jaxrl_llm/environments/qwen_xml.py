"""Calls in the XML of Qwen3-Coder's chat template.

  <function=NAME>
  <parameter=KEY>
  VALUE
  </parameter>
  </function>

A value is a text as it stands, without the ends of line around it. The type
hint of the argument says whether it is read as another type.
"""

import ast
import enum
import json
import re
import types
import typing
from typing import Any

_NAME = re.compile(r'<function=([^<>\n]+)>')
# An end tag that no tag follows is a part of the value.
_PARAMETER = re.compile(
    r'\s*<parameter=([^<>\n]+)>(.*?)</parameter>'
    r'(?=\s*(?:<parameter=|</function>))', re.DOTALL)
_END = re.compile(r'\s*</function>')


def read(text: str, start: int) -> tuple[str, dict[str, str], int] | None:
  """Reads a call.

  Args:
    text: a turn.
    start: where the call begins in it.

  Returns:
    The name of the function, its arguments as they are written, and where the
    call ends; None if there is no whole call.
  """
  name = _NAME.match(text, start)
  if not name:
    return None
  arguments, at = {}, name.end()
  while found := _PARAMETER.match(text, at):
    arguments[found[1].strip()] = found[2].removeprefix('\n').removesuffix('\n')
    at = found.end()
  end = _END.match(text, at)
  return (name[1].strip(), arguments, end.end()) if end else None


def value(text: str, hint: Any) -> Any:
  """Returns the value of an argument.

  Args:
    text: as it is written.
    hint: the argument's type hint.

  Returns:
    The text, if the argument may be one, else what it says as JSON or in
    Python. A text that says nothing is left for the function to complain of.
  """
  kinds = _kinds(hint)
  found = _said(text)
  # '3' is a text where one is allowed, '[3]' a list if that is too.
  others = tuple(kinds & {list, dict, tuple, types.NoneType})
  return text if str in kinds and not isinstance(found, others) else found


def _said(text: str) -> Any:
  """Returns what a text says as JSON or in Python, or else the text."""
  for reader in json.loads, ast.literal_eval:
    try:
      return reader(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
      continue
  return text


def _kinds(hint: Any) -> set[Any]:
  """Returns the types that a type hint allows, without what is in them."""
  origin, inner = typing.get_origin(hint), typing.get_args(hint)
  if origin in (typing.Union, types.UnionType):
    return set().union(*map(_kinds, inner))
  if origin is typing.Literal:
    return {*map(type, inner)}
  if isinstance(hint, type) and issubclass(hint, enum.Enum):
    return {type(member.value) for member in hint}
  return {origin or hint}
