r"""Structure of mathematical answers: lists, tuples, intervals, words, numbers.

`read` splits an answer at its commas and brackets by its text alone, so that
the order, the kind of bracket and every part of it are kept. What remains is a
number, a word or an expression, which `math.py` compares.
"""

import re
from typing import Iterator, NamedTuple

from jaxrl_llm.rewards import spelling


class Value(NamedTuple):
  """An answer in parts.

  Attributes:
    kind: 'list' (in any order), 'tuple' (also of an interval), 'number',
      'based', 'word', 'equation', or 'expression'.
    text: brackets of a tuple, form of a word, spelling of an expression; a
      number has ''.
    items: parts of a list, tuple or equation, or the number.
    unit: unit behind it, '?' for a counted thing.
    name: variable whose value or range it is.
  """
  kind: str
  text: str = ''
  items: tuple = ()
  unit: str = ''
  name: str = ''


_TOKEN = re.compile(r'\\[a-zA-Z]+|\\.|.', re.DOTALL)
_OPEN, _CLOSE = {'(', '[', '{', r'\{'}, {')', ']', '}', r'\}'}
_PAIRS = {'{': '}', r'\{': r'\}'}
# Possessive (++), since a command and letters can be split in many ways.
_LETTER = (r'(?:[a-zA-Z]|\\(?!text|frac|sqrt|begin|(?:pi|log|ln|exp|'
           r'(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc)(?![a-zA-Z]))[a-zA-Z]++)')
_NAME = re.compile(
    rf"(?:\\(?:angle|triangle|overline|mathbf|vec)\s*)?(?:{_LETTER}|"
    r'\\text\{[^{}]*\}|\{[A-Za-z]+\}|\|[A-Z]{2}\||\[[A-Z]{3,}\])'
    rf"(?:\s*{_LETTER}|_[a-zA-Z0-9]|_\{{[^{{}}]*\}}|')*"
    r'(?:\((?:[a-zA-Z]|-?[0-9]+)(?:,\s?(?:[a-zA-Z]|-?[0-9]+))*\))?')
_BASED = re.compile(
    r'\(?(?P<digits>-?[0-9A-Za-z]*[0-9][0-9A-Za-z]*)\)?\s*(?:_\s*(?:\{\s*'
    r'(?:\\text\s*\{|\()?(?P<base>[a-z0-9]+)[})]?\s*\}|(?P<short>[0-9]))|'
    r'(?:\\text\s*\{)?\s*base(?![a-z])\s*\}?\s*(?P<said>[0-9]+|[a-z]+)\s*\}?)')
_ANGLE = re.compile(r'\\angle\s*([A-Z])\s*([A-Z])\s*([A-Z])')
_NAMES = re.compile(rf'\(\s*{_LETTER}(?:\s*,\s*{_LETTER})+\s*\)')
_CHOICE = re.compile(
    r'(?:(?i:option|choice|answer)\s+\(?(?P<a>[A-J])\)?|(?P<b>[A-J])[).:])')
_NUMBER_WORDS = {'two': '2', 'three': '3', 'four': '4', 'five': '5', 'six': '6',
                 'seven': '7', 'eight': '8', 'nine': '9', 'ten': '10'}
_MEMBER = re.compile(rf'{_LETTER}\s*\\in(?![a-zA-Z])\s*')
_DOTS = re.compile(r'\\(?:[lc]?dots|dots[a-z])(?![a-zA-Z])|\.\.\.')
_ORDER = {'<': '<', '>': '>', r'\le': '<=', r'\ge': '>='}
_TIME = re.compile(
    r'(?P<h>[0-9]{1,2}):(?P<m>[0-9]{2})(?::(?P<s>[0-9]{2}))?\s*'
    r'(?:(?P<half>[ap])\.?\s?m\.?)?', re.IGNORECASE)
_PROSE = re.compile(  # without a command, so not a product of letters
    r"[a-zA-Z]{4,}|(?=.*[a-zA-Z]{3})[a-zA-Z]+(?:(?: |, |'|-)[a-zA-Z]+)+")
_MONTHS = ('jan feb mar apr may jun jul aug sep oct nov dec').split()
_MONTH = re.compile(
    r'\b(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|'
    r'aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b')


def read(text: str) -> Value | None:
  """Reads the parts of an answer in the spelling of `clean`.

  Returns:
    The value, or None if it is empty, has an ellipsis, or is no answer by
    itself, such as '= 5'.
  """
  text = text.strip()
  if not text or _DOTS.search(text):
    return None
  if word := _word(text):
    return word
  parts = split(text, {',', ';'})
  if len(parts) > 1:
    return _list([p for p in parts if p])
  text = text[found.end():] if (found := _MEMBER.match(text)) else text
  if re.fullmatch('[^:]+(?::[^:]+){2,}', text):
    items = [read(part) for part in split(text, {':'})]
    return None if None in items else Value('tuple', '::', tuple(items))
  parts = split(text, {r'\cup'})
  if len(parts) > 1:
    return _list(parts)
  if found := _ANGLE.fullmatch(text):
    a, b, c = found.groups()  # not a product: only its two sides may change
    return Value('word', f'angle {min(a, c)}{b}{max(a, c)}')
  if found := _BASED.fullmatch(text):
    base = found['base'] or found['short'] or found['said']
    base = _NUMBER_WORDS.get(base, base)
    return Value('based', found['digits'].upper().lstrip('0'), (base,))
  if inside := _inside(text):
    return inside
  return _relation(text) or _single(text)


def split(text: str, separators: set[str]) -> list[str]:
  """Splits a text at separators that are in no bracket or group."""
  depth, parts = 0, ['']
  for token in _TOKEN.findall(text):
    depth += (token in _OPEN) - (token in _CLOSE)
    if depth == 0 and token in separators:
      parts.append('')
    else:
      parts[-1] += token
  return [part.strip() for part in parts]


def _list(parts: list[str]) -> Value | None:
  """Reads a list. A name before its first part counts for all parts."""
  items = [read(part) for part in parts]
  if not items or None in items:
    return None
  if len(items) == 1:
    return items[0]
  first = items[0]
  if first.kind == 'equation' and len(first.items) == 2 and not any(
      i.kind == 'equation' and i.items[0] != first.items[0] for i in items):
    items = [i.items[1] if i.kind == 'equation' else i for i in items]
  if all(item.kind == 'list' for item in items):
    items = [i for item in items for i in item.items]
  return Value('list', '', tuple(_signs(items)))


def _signs(items: list[Value]) -> Iterator[Value]:
  """Flattens lists that stand for both signs of an element."""
  for item in items:
    if item.kind == 'list' and item.text == r'\pm':
      yield from item.items
    else:
      yield item


def _inside(text: str) -> Value | None:
  """Reads what has brackets around it."""
  tokens = _TOKEN.findall(text)
  if tokens[0] not in _OPEN or tokens[-1] not in _CLOSE:
    return None
  depth = 0
  for i, token in enumerate(tokens):
    depth += (token in _OPEN) - (token in _CLOSE)
    if depth == 0 and i < len(tokens) - 1:
      return None
  content = text[len(tokens[0]):len(text) - len(tokens[-1])].strip()
  if tokens[0] == r'\{' and content in ('', r'\emptyset'):
    return None  # the set of the empty set
  if tokens[0] in ('{', r'\{'):
    return read(content) if _PAIRS[tokens[0]] == tokens[-1] else None
  parts = split(content, {',', ';'})
  if len(parts) == 1:
    return read(content) if tokens[0] == '(' and tokens[-1] == ')' else None
  items = [read(part) for part in parts]
  if None in items:
    return None
  return Value('tuple', tokens[0] + tokens[-1], tuple(items))


def _relation(text: str) -> Value | None:
  """Reads equations as their members, inequalities of a name as intervals."""
  parts = split(text, {'='})
  if len(parts) > 1:
    items = [read(part) for part in parts]
    if None in items:
      return None
    is_name = _NAME.fullmatch(parts[0]) or _NAMES.fullmatch(parts[0])
    name = parts[0] if is_name else ''
    return Value('equation', text, tuple(items), name=re.sub(r'\s', '', name))
  if not re.search(r'[<>]|\\[lg]e(?![a-zA-Z])', text):
    return None
  parts = split(text, set(_ORDER))
  signs = [_ORDER[t] for t in _TOKEN.findall(text) if t in _ORDER]
  if len(signs) != len(parts) - 1 or '' in parts:
    return None
  names = [bool(_NAME.fullmatch(p)) and len(p) < 8 for p in parts]
  if len({s[0] for s in signs}) > 1 or names not in (
      [True, False], [False, True], [False, True, False]):
    return None
  name = parts[names.index(True)]
  bound = [read(p) for p, is_name in zip(parts, names) if not is_name]
  if None in bound:
    return None
  signs = [len(s) == 1 for s in signs] + [s[0] for s in signs][:1]
  opened, down = signs[:-1], signs[-1] == '>'
  infinite = Value('expression', r'\infty'), Value('expression', r'-\infty')
  if len(parts) == 3:
    low, high = bound
    if down:
      low, high, opened = high, low, opened[::-1]
  elif names[0] == down:  # x > a, or a < x
    low, high, opened = bound[0], infinite[0], [opened[0], True]
  else:
    low, high, opened = infinite[1], bound[0], [True, opened[0]]
  return Value('tuple', '[('[opened[0]] + '])'[opened[1]], (low, high),
               name=re.sub(r'\s', '', name))


def _single(text: str) -> Value | None:
  """Reads a number or an expression, with a unit or without."""
  if text.count(r'\pm') == 1:
    signs = [read(text.replace(r'\pm', sign)) for sign in '+-']
    return None if None in signs else Value('list', r'\pm', tuple(signs))
  rest, unit, scale = spelling.unit(text)
  if (value := spelling.number(rest)) is not None:
    return Value('number', '', (value * scale,), unit)
  if scale > 1:
    return None
  parts = split(rest, {r'\approx'})
  if len(parts) == 2 and parts[1]:
    # The exact value, if there is one.
    rounded = not parts[0] or _NAME.fullmatch(parts[0])
    found = read(parts[bool(rounded)])
    return found and found._replace(unit=found.unit or unit)
  if re.match(r'[=<>]|\\(?:[lg]e|approx|ne|to)(?![a-zA-Z])', rest):
    return None
  return Value('expression', rest, unit=unit)


def _word(text: str) -> Value | None:
  """Reads a word, time or date, in \text or not."""
  plain = re.sub(r'\\text\s*\{([^{}]*)\}', r' \1 ', text)
  plain = re.sub(r'\s+', ' ', plain).strip(' .,!?"\'`*')
  if found := _TIME.fullmatch(plain):
    half = (found['half'] or '').lower()
    second = ':' + found['s'] if found['s'] else ''
    return Value(
        'word', f'{int(found["h"])}:{found["m"]}{second}', (), half)
  low = plain.lower()
  if (found := _MONTH.search(low)) and re.search('[0-9]', low):
    numbers = [int(n) for n in re.findall(
        r'(?<![0-9])([0-9]{1,4})(?:st|nd|rd|th)?\b', low)]
    numbers.sort(key=lambda n: n > 31)  # the year is the last
    rest = re.sub(r'[0-9]{1,4}(?:st|nd|rd|th)?|,|\bof\b|\bthe\b|\s', '',
                  low.replace(found[0], '', 1))
    if not rest:
      month = _MONTHS.index(found[0][:3]) + 1
      return Value('word', f'month {month} ' + ' '.join(map(str, numbers)))
  if found := _CHOICE.fullmatch(plain):
    return Value('expression', found['a'] or found['b'])
  whole = re.fullmatch(r'(?:\\text\s*\{[^{}]*\}\s*)+', text)
  if not whole and not _PROSE.fullmatch(plain):
    return None
  if re.search(r'[\\{}=]', plain) or not re.search('[a-zA-Z]', plain):
    return None
  listed = re.split(r',\s*(?:and |or )?| and | or ', plain)
  if len(listed) > 1 and all(listed):
    return Value('list', '', tuple(
        Value('word', _lower(item.strip())) for item in listed))
  return Value('word', _lower(plain))


def _lower(text: str) -> str:
  """Lowers a word. The case of one letter counts, as in M and m."""
  return text if len(text) == 1 else re.sub('^(?:an?|the) ', '', text.lower())


def form(value: Value) -> str:
  """Returns one text for values that are written alike."""
  if value.kind == 'number':
    return str(value.items[0]) + ('%' if value.unit == '%' else '')
  if value.kind == 'based':
    return f'{value.text}_{value.items[0]}'
  if value.kind == 'list':
    return ','.join(sorted(map(form, value.items)))
  if value.kind == 'tuple':
    return value.text[0] + ','.join(map(form, value.items)) + value.text[1]
  if value.kind == 'equation':
    return '='.join(map(form, value.items))
  if value.kind == 'word':
    return value.text + (f' {value.unit}m' if value.unit else '')
  return re.sub(r'(?<!\w) | (?!\w)', '', value.text)
