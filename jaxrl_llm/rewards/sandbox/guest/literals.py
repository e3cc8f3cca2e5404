"""Typed literals: the only values that cross between two sandboxes.

`dump` writes a value as bytes and `load` reads it. Each value is a letter for
its type and then its content, so that neither side ever runs code of the other,
as pickle or eval would. A subclass of a type is written by its value as that
type, whatever methods it has. The files of this folder run in a sandbox, where
an import costs milliseconds for each program: they import little, and late.
"""

# Values in values; Python's own limit on recursion is far above.
_DEEPEST = 100
# Modules of Python with types that are literals too.
LIBRARIES = 'collections', 'decimal', 'fractions'
_TYPES = {t.__name__: t for t in (
    bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set,
    frozenset, range, object, type)}
_KEYS, _ITEMS = type({}.keys()), type({}.items())
_WHOLE = slice(None)
_CONTAINERS = {b'l': list, b't': tuple, b'S': set, b'Z': frozenset}


def _refused(*_):
  """Refuses an object that is no literal."""
  raise ValueError('not a literal')


def dump(value, other=_refused):
  """Returns a value as bytes.

  Args:
    value: any object.
    other: object -> bytes, one token for an object that is no literal: a letter
      of 'h', 'u' or 'x', digits and ';'. May raise an error; by default it
      does.

  Raises:
    ValueError: the value is nested too deeply, or without end.
  """
  out = []
  _dump(value, other, out.append, 0)
  return b''.join(out)


def _dump(value, other, put, depth):
  """Writes one value."""
  if depth > _DEEPEST:
    raise ValueError('a value is nested too deeply')
  # Not isinstance, which an object may answer itself by __class__.
  kind = type(value)
  if value is None:
    put(b'N')
  elif kind is bool:
    put(b'T' if value else b'F')
  elif issubclass(kind, int):
    put(b'i%x;' % value if kind is int else b'i%x;' % int.__int__(value))
  elif issubclass(kind, float):
    put(b'f%s;' % float.__repr__(value).encode())
  elif issubclass(kind, str):
    _dump_bytes(b's', str.encode(value, 'utf-8', 'surrogatepass'), put)
  elif kind is type and _TYPES.get(value.__name__) is value:
    _dump_bytes(b'X', value.__name__.encode(), put)
  elif kind is complex:
    put(b'c%r;%r;' % (value.real, value.imag))
  elif issubclass(kind, (bytes, bytearray)):
    base = bytes if issubclass(kind, bytes) else bytearray
    _dump_bytes(b'b' if base is bytes else b'y',
                bytes(base.__getitem__(value, _WHOLE)), put)
  elif value is Ellipsis:
    put(b'E')
  elif found := _parts(value, kind):
    letter, parts = found
    put(b'%b%x;' % (letter, len(parts)))
    for part in parts:
      _dump(part, other, put, depth + 1)
  else:
    put(other(value))


def _parts(value, kind):
  """Returns the letter of a container and its values; None for all else."""
  for letter, base in _CONTAINERS.items():
    if issubclass(kind, base):
      return letter, [*base.__iter__(value)]
  name = kind.__name__ if kind.__module__ in LIBRARIES else ''
  if issubclass(kind, dict):
    letter = {'Counter': b'C', 'OrderedDict': b'O'}.get(name, b'd')
    return letter, [part for pair in dict.items(value) for part in pair]
  if kind is range:
    return b'r', (value.start, value.stop, value.step)
  if kind is _KEYS:
    return b'K', [*value]
  if kind is _ITEMS:
    return b'P', [part for pair in value for part in pair]
  if name == 'deque':
    return b'Q', [value.maxlen, *value]
  if name == 'Fraction':
    return b'R', (value.numerator, value.denominator)
  if name == 'Decimal':
    return b'M', (str(value),)
  return None


def _dump_bytes(letter, data, put):
  put(b'%b%x;' % (letter, len(data)))
  put(data)


def load(data, other=_refused):
  """Reads the value that `dump` wrote.

  Args:
    data: bytes.
    other: (letter, number) -> object, for the tokens of `dump`'s `other`. May
      raise ValueError; by default it does.

  Raises:
    ValueError: this is no literal.
  """
  try:
    value, end = _load(data, 0, other, 0)
  except (IndexError, TypeError, OverflowError, ArithmeticError) as error:
    raise ValueError(f'not a literal ({type(error).__name__})') from None
  if end != len(data):
    raise ValueError('not a literal (bytes after its end)')
  return value


def _load(data, at, other, depth):
  """Returns the value that begins at an index, and the index of its end."""
  letter = data[at:at + 1]
  if depth > _DEEPEST or not letter:
    raise ValueError('not a literal')
  if letter in b'NTFE':
    return {b'N': None, b'T': True, b'F': False, b'E': ...}[letter], at + 1
  end = data.index(b';', at)
  word = data[at + 1:end]
  end += 1
  if letter == b'f':
    return float(word), end
  if letter == b'c':
    rest = data.index(b';', end)
    return complex(float(word), float(data[end:rest])), rest + 1
  number = int(word, 16)
  if letter == b'i':
    return number, end
  if letter in b'hux':
    return other(letter, number), end
  if number < 0 or number > len(data) - end:  # Each value takes a byte.
    raise ValueError('not a literal (too short)')
  if letter in b'sbyX':
    part = data[end:end + number]
    return _of_bytes(letter, part), end + number
  values = []
  for _ in range(number):
    value, end = _load(data, end, other, depth + 1)
    values.append(value)
  return _of_values(letter, values), end


def _of_bytes(letter, data):
  """Returns the value with such a content."""
  if letter == b'b':
    return data
  if letter == b'y':
    return bytearray(data)
  text = data.decode('utf-8', 'surrogatepass')
  if letter == b's':
    return text
  if text not in _TYPES:
    raise ValueError('not a literal (a type)')
  return _TYPES[text]


def _of_values(letter, values):
  """Returns the container of some values."""
  if letter in _CONTAINERS:
    return _CONTAINERS[letter](values)
  if letter == b'r':
    return range(*values)
  if letter == b'R':
    import fractions
    return fractions.Fraction(*values)
  if letter == b'M':
    import decimal
    return decimal.Decimal(*values)
  if letter == b'K':
    return dict.fromkeys(values).keys()
  if letter == b'Q':
    import collections
    return collections.deque(values[1:], values[0])
  pairs = dict(zip(values[::2], values[1::2], strict=True))
  if letter == b'd':
    return pairs
  if letter == b'P':
    return pairs.items()
  if letter in b'CO':
    import collections
    return (collections.Counter if letter == b'C' else
            collections.OrderedDict)(pairs)
  raise ValueError('not a literal (unknown type)')
