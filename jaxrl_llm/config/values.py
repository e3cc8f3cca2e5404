"""Values of fields: their types, ranges, choices and texts."""

import ctypes
import json
import math
import operator
import typing
from typing import Any

from jaxrl_llm.base import own_code, schedules
from jaxrl_llm.base.declared import (
    AUTO,
    Automatic,
    Field,
    Lengths,
    optional,
    Texts,
)
from jaxrl_llm.config.names import unknown
from jaxrl_llm.config.table import table

_INT32 = 2 ** 31 - 1
_FOLDERS = ('workdir', 'sft.cache', 'compilation_cache')
# Kinds of texts, and how they are completed.
_TEXTS = {
    str: str, own_code.Name: own_code.absolute,
    own_code.Path: own_code.expanded,
    own_code.FileText: own_code.content}
_PAIRS = 'step:value pairs that begin at step 0 and ascend, such as '
# Types as errors describe them.
_DESCRIBED = {
    bool: 'true or false (bool)', int: 'a whole number (int)',
    float: 'a number (float)', str: 'a text (str)',
    own_code.Name: 'a text (str)', own_code.Path: 'a path (str)',
    own_code.FileText: 'a text (str) or a FILE.txt',
    Texts: 'a text or a JSON list of texts, none of them empty',
    Lengths: f'lengths with commas between them, {AUTO} or none',
    Automatic: f'a whole number (int) or {AUTO}',
    schedules.Steps: f'a whole number, or {_PAIRS}0:8,1500:1',
    schedules.Floats: f'a number (float), or {_PAIRS}0:1.2,500:0.8'}


def check(flat: dict[str, Any]) -> dict[str, Any]:
  """Checks every value by itself, and completes the fields of the plugs.

  Args:
    flat: dotted name to value, or to its text as on the command line.

  Returns:
    Every field in the order of the table, each value of its field's type.

  Raises:
    ValueError: unknown fields, with a line for each; a value of the wrong
      type or out of range.
  """
  known = table(flat)
  if others := [name for name in flat if name not in known]:
    raise ValueError('\n'.join(unknown(name, known) for name in others))
  return {
      name: converted(field, flat.get(name, field.default))
      for name, field in known.items()}


def converted(field: Field, value: Any) -> Any:
  """Returns the value in its field's type, range and choices."""
  given = value
  try:
    value = _as_kind(value, field.kind)
  except Exception:  # of many types: a config may hold anything
    raise ValueError(
        f'{field.name}={shown(given)} must be '
        f'{_describe(field.kind)}.') from None
  try:
    value = _completed(value, field.kind)
  except ValueError as error:
    raise ValueError(f'{field.name}: {error}') from None
  for v in value if isinstance(value, tuple) else (value,):
    for number in [x for _, x in schedules.pieces(v, float)] if (
        field.kind is schedules.Floats) else [v]:
      _check_number(field, number)
    if isinstance(v, str):
      _check_text(field, v)
  if field.choices and field.kind is not own_code.Name and (
      value not in (None, *field.choices)):
    raise ValueError(
        f'{field.name}={shown(value)} is not known.'
        f'{own_code.closest(value, field.choices)}')
  return value


def _completed(value: Any, kind: Any) -> Any:
  """Returns texts completed as their kind says, other values as they are."""
  _, kind = optional(kind)
  if isinstance(value, tuple) and kind not in (Lengths, Texts):
    return tuple(_completed(v, typing.get_args(kind)[0]) for v in value)
  return _TEXTS[kind](value) if kind in _TEXTS and value is not None else value


def _check_number(field: Field, value: Any) -> None:
  """Raises ValueError for a number out of its range, also on a device."""
  if isinstance(value, (bool, str)) or value is None:
    return
  low, high = map(float, field.range[1:-1].split(',')) if field.range else (
      -math.inf, math.inf)
  ends = {'[': low, ']': high}
  inside = [ends[b] for b in field.range if b in ends]
  is_inside = lambda x: low < x < high or x in inside
  if field.range and not is_inside(value):
    raise ValueError(f'{field.name}={shown(value)} must lie in {field.range}.')
  # What a task does with its options is its own affair.
  seen = field.name == 'task.seed' or not field.name.startswith('task.')
  if seen and isinstance(value, int) and math.isinf(high) and (
      abs(value) > _INT32):
    raise ValueError(
        f'{field.name}={shown(value)} is no 32-bit number: use at most '
        f'{_INT32}.')
  if field.range and isinstance(value, float) and not is_inside(
      _float32(value)):
    raise ValueError(
        f'{field.name}={value} is {_float32(value):g} in float32, in which the '
        f'run computes, and must lie in {field.range} there too.')


def _float32(value: float) -> float:
  """Rounds to float32; devices take the numbers next to 0 for 0."""
  rounded = ctypes.c_float(value).value
  return 0.0 if abs(rounded) < 2.0 ** -126 else rounded


def _check_text(field: Field, value: str) -> None:
  """Raises ValueError for a text that no file or screen can take."""
  if field.name in _FOLDERS and not value.strip():
    raise ValueError(f'{field.name} is empty: give {_describe(field.kind)}.')
  try:
    value.encode()
  except UnicodeEncodeError:
    raise ValueError(
        f'{field.name}={shown(value)} is not valid Unicode: correct '
        'it.') from None
  if '\0' in value:
    raise ValueError(f'{field.name} has a NUL character: remove it.')


def shown(value: Any) -> str:
  """Returns a value for a message: on one short line, whatever it is."""
  try:
    text = str(value)
    text = text if text.isprintable() else ascii(value)
  except Exception:  # of the user's own types, or of very long numbers
    text = f'a {type(value).__name__}'
  text = ' '.join(text.split())
  return text if len(text) <= 100 else f'{text[:97]}...'


def to_text(value: Any) -> str:
  """Returns a value as one would write it on the command line."""
  if isinstance(value, Texts):
    return json.dumps(value) if value else 'none'
  if isinstance(value, tuple):
    return ','.join(to_text(v) for v in value)
  if value is None or isinstance(value, bool):
    return str(value).lower()
  return str(value)


def _as_kind(value: Any, kind: Any) -> Any:
  """Converts a value, or its text; KeyError, TypeError, ValueError if wrong."""
  can_be_none, kind = optional(kind)
  if can_be_none and str(value).lower() == 'none':
    return None
  if kind is Lengths:
    return AUTO if str(value).lower() == AUTO else _as_kind(
        value, tuple[int, ...])
  if kind is Automatic:
    return AUTO if str(value).lower() == AUTO else _as_kind(value, int)
  if kind is Texts:
    return _texts(value)
  if typing.get_origin(kind) is tuple:
    if value is None or str(value).strip().lower() == 'none':
      return ()
    if isinstance(value, str):
      items = [v.strip('\'" ') for v in value.strip('()[] ,').split(',')]
      value = items if items != [''] else []
    items = value if isinstance(value, (list, tuple)) else [value]
    return tuple(_as_kind(v, typing.get_args(kind)[0]) for v in items)
  if kind is bool:
    return {'true': True, '1': True, 'false': False, '0': False}[
        str(value).lower()]
  if kind is schedules.Steps:
    return schedules.canonical(value)
  if kind is schedules.Floats and ':' in str(value):
    value = schedules.canonical(value, float)
    if ':' in value:
      return value
  if kind in _TEXTS:
    if not isinstance(value, str):
      raise TypeError
    return value
  if isinstance(value, bool):
    raise TypeError
  if kind is int:
    return int(value) if isinstance(value, str) else operator.index(value)
  number = float(value)
  if math.isnan(number):
    raise ValueError
  return number


def _texts(value: Any) -> Texts:
  """Converts a text, or several; ValueError if one is empty or no text."""
  if value is None or value in ('', 'none'):
    return Texts()
  if isinstance(value, str):
    try:
      found = json.loads(value)
    except (ValueError, RecursionError):
      found = None
    # Any other text stands for itself, such as a bracket.
    is_list = isinstance(found, list) and found and all(
        isinstance(v, str) for v in found)
    value = found if is_list else [value]
  if not isinstance(value, (list, tuple)) or not all(
      isinstance(v, str) and v for v in value):
    raise ValueError
  return Texts(value)


def _describe(kind: Any) -> str:
  """Describes a type, for an error."""
  can_be_none, kind = optional(kind)
  if typing.get_origin(kind) is tuple:
    element, = set(typing.get_args(kind)) - {...}
    text = f'{element.__name__} values with commas between them, or none'
  else:
    text = _DESCRIBED[kind]
  return f'{text}, or none' if can_be_none else text
