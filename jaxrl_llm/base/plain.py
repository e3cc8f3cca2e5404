"""Values of a user's code, made safe for files and for the screen.

A verifier may return or raise anything: text that is not valid Unicode, objects
that JSON does not have, errors whose own message fails. The functions for text
accept any value and raise nothing but KeyboardInterrupt.
"""

import contextlib
import math
import os
from typing import Any, Mapping

_SHOWN = 200  # characters of an object that is no text
_BITS = 64  # longer integers are written as text
_DEEPEST = 16  # levels of lists and dictionaries
_NO_NUMBERS = 'cmMSU'  # NumPy's letters for complex numbers, times and texts


def text(value: Any) -> str:
  """Returns text that can be encoded; '' for None.

  Half of a surrogate pair becomes U+FFFD. Another object becomes the beginning
  of its `str`, or its type's name if that fails.
  """
  if value is None:
    return ''
  if not isinstance(value, str):
    value = _of_object(value, str)[:_SHOWN]
  return str.encode(value, 'utf-16', 'surrogatepass').decode(
      'utf-16', 'replace')


def line(value: Any) -> str:
  """Returns `text` as one line without control characters."""
  return ' '.join(''.join(
      c if c.isprintable() else ' ' for c in text(value)).split())


def shown(value: Any, longest: int = 60) -> str:
  """Returns the beginning of a value's `repr`, as one line."""
  return line(_of_object(value, repr))[:longest]


def error(raised: BaseException) -> str:
  """Returns an error's type and message."""
  return f'{type(raised).__name__}: {text(_of_object(raised, str))}'


def number(value: Any) -> float | None:
  """Returns a number as float; None for what is none.

  Numbers are those of Python (bool, Decimal and Fraction among them), scalars
  of NumPy, JAX and PyTorch, and arrays of theirs that have no axis. Text and
  complex numbers are none. One that a float does not hold is inf.
  """
  try:
    dtype = getattr(value, 'dtype', None)
    kind = getattr(dtype, 'kind', '')  # of NumPy and JAX
    if getattr(value, 'shape', ()) or kind and kind in _NO_NUMBERS:
      return None
    if kind == 'O':
      return number(value.item())
    value = getattr(value, 'detach', lambda: value)()  # PyTorch's gradients
    if isinstance(value, (str, complex)) or not (
        hasattr(type(value), '__float__') or hasattr(type(value), '__index__')):
      return None
    return float(value)
  except OverflowError:
    return math.inf
  except Exception:  # of the methods of a user's object
    return None


def is_finite(value: Any) -> bool:
  """Returns whether a value of JSON is a finite number."""
  return isinstance(value, (int, float)) and math.isfinite(value)


def json(value: Any, around: tuple[int, ...] = ()) -> Any:
  """Returns a value that JSON has.

  Arrays become lists and numbers that are not finite None. Objects that JSON
  does not have become text, as does what cannot be read, what lies too deep and
  a container within itself.

  Args:
    value: any value.
    around: ids of the containers that it is in.
  """
  try:
    if len(around) == _DEEPEST or id(value) in around:
      return text(value)
    return _read(value, around)
  except Exception:  # of the methods of a user's object
    return text(value)


def say_now(sentence: str) -> None:
  """Writes a sentence to stderr at once; nothing if that is closed.

  A signal's handler and a thread that ends the process call it: the main thread
  may hold the locks of the streams.
  """
  with contextlib.suppress(OSError):
    os.write(2, f'\n{sentence}\n'.encode(errors='replace'))


def _read(value: Any, around: tuple[int, ...]) -> Any:
  """See `json`; raises what the value's own methods raise."""
  if isinstance(value, str):
    return text(value)
  if value is None or isinstance(value, bool):
    return value
  if isinstance(value, int):
    return int(value) if value.bit_length() <= _BITS else text(value)
  if isinstance(value, float):
    return float(value) if math.isfinite(value) else None
  if hasattr(type(value), 'tolist'):  # of NumPy or JAX
    plain = value.tolist()
    # That of a longdouble is one again.
    return text(value) if type(plain) is type(value) else _read(plain, around)
  around += id(value),
  if isinstance(value, Mapping):
    return {text(key): json(item, around) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [json(item, around) for item in value]
  return text(value)


def _of_object(value: Any, convert: Any) -> str:
  """Returns `convert(value)`, or the type's name if it fails."""
  try:
    return convert(value)
  except KeyboardInterrupt:
    raise
  except BaseException:  # pylint: disable=broad-exception-caught
    return f'<{type(value).__name__}>'
