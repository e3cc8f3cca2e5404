r"""Units, counted things and words of answers.

A unit is compared where both answers have one. A counted thing (5 apples) is
not: the number is the answer.
"""

import re
from typing import Any, Callable, Sequence

from jaxrl_llm.answers import tokens

# Each line: spellings of the same units. Those of one letter count only where
# the letter is set as text.
_MEASURES = '''
m meter metre|cm centimeter centimetre|mm millimeter millimetre
km kilometer kilometre|nm nanometer nanometre|inch inches in ins|ft foot feet
yd yard|mi mile|g gram gm|kg kilogram|mg milligram|lb pound lbs|oz ounce
ton|t tonne|s sec second|ms millisecond|min minute mins|h hr hour hrs
day|week|month|year yr yrs|decade|century centuries|l liter litre
ml milliliter millilitre|gal gallon|quart qt|pint pt|cup|acre|hectare ha
deg degree|rad radian|dollar usd dollars bucks|cent cents|euro eur|gbp
yuan rmb|yen jpy|rupee rs|mph|kph kmph|unit|people person persons|men man
women woman|child children|percentage-points|hz hertz|khz kilohertz|j joule
kj kilojoule|w watt|kw kilowatt|kwh|v volt|n newton|kn kilonewton|pa pascal
kpa kilopascal|atm|a amp ampere|k kelvin|erg|ev|mol mole|cal calorie|kcal
bit|byte|ohm|tesla|coulomb|bar|knot|mpg|rpm|bpm|dozen|c celsius
f fahrenheit
'''
_UNITS = {name: line.split()[0] for line in re.split(
    r'[|\n]', _MEASURES.strip()) for name in line.split()}
_COMPOUND = {'mph': 'mi/h', 'kph': 'km/h', 'mpg': 'mi/gal'}
# Units of one letter; c, e, i and x are left to be variables.
_LETTERS = {'m': 'm', 's': 's', 'g': 'g', 'h': 'h', 'l': 'l', 'L': 'l',
            't': 't', 'J': 'j', 'W': 'w', 'V': 'v', 'N': 'n', 'K': 'k',
            'A': 'a', 'C': 'C', 'F': 'F'}
CURRENCIES = {'$': 'dollar', r'\$': 'dollar', '€': 'euro', '£': 'gbp',
              '¥': 'yen', '₹': 'rupee', 'USD': 'dollar', 'US$': 'dollar'}
SCALES = {'hundred': 10**2, 'thousand': 10**3, 'million': 10**6,
          'billion': 10**9, 'trillion': 10**12, 'dozen': 12}
# Signs that a unit may have.
SIGNS = frozenset(['/', r'\cdot', r'\times', '*', '^', '-', '{', '}', '%', '.',
                   *CURRENCIES])
# Words that end with s, or end a phrase, and are no things that one counts.
_NOT_THINGS = frozenset(
    'is was has does times plus minus less this thus yes as modulus us mod '
    'perhaps hundreds thousands millions billions trillions dozens false true '
    'plus-minus factorials tens ones halves thirds quarters fifths sixths '
    'sevenths eighths ninths tenths hundredths thousandths and or not no '
    'than at least most about over under below above between wrong if for '
    'negative positive of the only square cubic negatives powers squares cubes '
    'roots pairs scores grosses divides exceeds fails remains equals unknowns '
    'factors incorrect correct approximately approx exact rounded maybe '
    'none never half third quarter even odd base nonsense where when with to '
    'more fewer remainder always unless except'.split())
_THINGS = frozenset('sheep fish mice deer people children geese feet'.split())
_PARTS = re.compile('(?:ths|illions)$')  # twelfths, quintillions


def read(
    parts: Sequence[tokens.Token], *, bare: bool, any_thing: bool
) -> tuple[str, int] | None:
  """Reads the unit or counted thing behind a number.

  Args:
    parts: its tokens.
    bare: whether letters of a run of one may be units, as in '6 m/s'.
    any_thing: whether any words are a thing, as in '13 (money)'.

  Returns:
    The unit in one spelling ('%' for percent, '?' for a counted thing, which
    is not compared) and the factor of a word such as 'million'; None if it is
    neither.
  """
  if len(parts) == 1 and parts[0].kind == 'sign':
    if parts[0].text == '%':
      return '%', 1
    name = CURRENCIES.get(parts[0].text)
    return (name, 1) if name else None
  # Without \text, a letter behind a number is a variable.
  runs = [p for p in parts if p.kind == 'letters']
  if runs and not bare and all(len(p.text) == 1 for p in runs) and not any(
      p.kind in ('text', 'mark') for p in parts):
    return None
  text = ''.join((' ' if p.spaced or p.kind != 'sign' else '') + p.text
                 for p in parts)
  if re.search(r'\d', re.sub(r'\^ ?\{? ?-? ?\d', '', text)):
    return None
  scale, words = 1, text.split()
  while words and words[0].lower() in SCALES:
    scale *= SCALES[words.pop(0).lower()]
  if not words:
    return '', scale
  name = _phrase(' '.join(words), any_thing)
  return None if name is None else (name, scale)


def _phrase(text: str, any_thing: bool) -> str | None:
  """Returns the one spelling of a unit, '?' for a thing, None if neither."""
  text = text.strip(' ().,')
  low = text.lower()
  if low in ('percent', 'percents', 'per cent', 'pct', '%'):
    return '%'
  low = re.sub(r'\s+old$', '', low)
  if (name := _unit(re.sub(r'\s+old$', '', text))) is not None:
    return name
  if ' of ' in low:
    return _phrase(text[:low.index(' of ')], any_thing)
  words = re.split(r'[\s/-]+', low)
  if any(not word.isalpha() for word in words) or _NOT_THINGS & set(words):
    return None
  if any_thing or words[-1] in _THINGS:
    return '?'
  if ' per ' in low or ' each' in low or '/' in low:
    first = re.split(r' per | each|/', low)[0].split()
    return '?' if first and _is_thing(first) else None
  return '?' if _is_thing(words) else None


_COUNTS = frozenset([*tokens.FUNCTIONS, *SCALES, *(
    'pi two three four five six seven eight nine ten eleven twelve thirteen '
    'fourteen fifteen sixteen seventeen eighteen nineteen opposite lakh crore '
    'double triple inverse mod').split()])


def _is_thing(words: Sequence[str]) -> bool:
  last = words[-1]
  if last.removesuffix('s') in _COUNTS:
    return False
  return len(words) <= 3 and (
      last in _THINGS or len(last) > 2 and last in _UNITS or bool(
          re.fullmatch('[a-z]{2,}s', last) and not _PARTS.search(last)
          and not last.endswith('ss')))


def _unit(text: str) -> str | None:
  """Returns the one spelling of a unit with its powers; None if unknown."""
  text = re.sub(r'\\(?:cdot|times)', '*', text)
  text = re.sub(r'(?i)\bper\b', '/', text)
  text = re.sub(r'\s*\^\s*\{?\s*(-?)\s*(\d)\s*\}?', r'^\1\2', text)
  text = re.sub(r'(?i)\b(?:square|sq\.?)\s+([a-z]+)', r'\1^2', text)
  text = re.sub(r'(?i)\b(?:cubic|cu\.?)\s+([a-z]+)', r'\1^3', text)
  text = re.sub(r'(?i)\b([a-z]+)\s+squared\b', r'\1^2', text)
  text = re.sub(r'(?i)\b([a-z]+)\s+cubed\b', r'\1^3', text)
  text = re.sub(r'[{}()]', ' ', text).replace('.', ' ')
  powers: dict[str, int] = {}
  for i, part in enumerate(text.split('/')):
    names = re.split(
        r'[\s*]+|(?<=[A-Za-z0-9])-(?=[A-Za-z])|\s+-\s+', part.strip())
    names = [name for name in names if name and name != '-']
    if not names:
      return None
    for name in names:
      found = re.fullmatch(r'([A-Za-z]+)(?:\^(-?\d))?', name)
      if not found or (one := _one(found[1])) is None:
        return None
      for j, factor in enumerate(one.split('/')):
        sign = (-1) ** (bool(i) + j)
        powers[factor] = powers.get(factor, 0) + sign * int(found[2] or 1)
  return ' '.join(f'{name}^{power}' if power != 1 else name
                  for name, power in sorted(powers.items()) if power) or None


def _one(name: str) -> str | None:
  if len(name) == 1:
    return _LETTERS.get(name)
  if len(name) == 2 and name[0] == 'M' and name != 'Mi':  # mega, not milli
    return None
  low = name.lower()
  found = _UNITS.get(low) or _UNITS.get(low.removesuffix('s'))
  return _COMPOUND.get(found, found) if found else None


# Words.

_SMALL = frozenset('yes no odd even true false none all red one two six ten '
                   'dne zero four five nine both ann bob'.split())
_NUMBERS = {word: i for i, word in enumerate(
    'zero one two three four five six seven eight nine ten eleven twelve '
    'thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty'
    .split())}
_SAME = {
    'no solutions': 'no solution', 'there is no solution': 'no solution',
    'there are no solutions': 'no solution', 'dne': 'does not exist',
    'no real solutions': 'no solution', 'not exist': 'does not exist',
    'doesnt exist': 'does not exist', 'all reals': 'all real numbers',
    'real numbers': 'all real numbers', 'empty set': 'no solution',
    'every real number': 'all real numbers', 'none': 'no solution',
    'limit does not exist': 'does not exist', 'undefined': 'does not exist',
    'positive infinity': 'infinity', 'no real solution': 'no solution'}
_MEANT = {'infinity': ('infinity',), 'no solution': ('set',),
          'all real numbers': ('name', r'\mathbb{R}')}
_TIME = re.compile(
    r'(?P<h>[0-9]{1,2}):(?P<m>[0-9]{2})(?::(?P<s>[0-9]{2}))?\s*'
    r'(?:(?P<half>[ap])\.?\s?m\.?)?', re.IGNORECASE)
_HOUR = re.compile(
    r'(?P<h>[0-9]{1,2})\s*(?P<half>[ap])\.?\s?m\.?', re.IGNORECASE)
_DATE = re.compile(r'[0-9]{1,2}/[0-9]{1,2}/(?:[0-9]{2}|[0-9]{4})')
_MONTHS = 'jan feb mar apr may jun jul aug sep oct nov dec'.split()
_MONTH = re.compile(
    r'\b(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|'
    r'aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b')
_CHOICE = re.compile(
    r'(?:(?i:option|choice|answer)\s+\(?(?P<a>[A-J])\)?|(?P<b>[A-J])[).:])')
_TEXT = re.compile(
    r'\\(?:text(?:bf|it|rm|sf|normal|up)?|math(?:rm|bf|it|sf)|[mh]box|emph)'
    r'\s*\{([^{}]*)\}')


def is_word(text: str) -> bool:
  """Tells whether a run of letters in mathematics is a word, not a product."""
  if text.lower() in _SMALL or re.fullmatch('[A-Z][a-z]{2,}', text):
    return True
  # PV is a product; BB, IX and ACB are none.
  return bool(re.fullmatch('[A-Z]{3,}|([A-Z])\\1|[IVXLCDM]{2}', text))


def word(text: str, node: Callable[..., Any]) -> Any:
  """Returns the node of words: lower case, without articles and markup."""
  text = re.sub(r'\s+', ' ', text).strip(' .,!?"\'`*')
  low = re.sub("^(?:an?|the) ", '', text.lower())
  low = _SAME.get(low.replace("'", ''), low)
  listed = re.split(r',\s*(?:and |or )?| and | or ', text)
  if len(listed) > 1 and all(listed):
    # A or B is not A and B.
    op = 'either' if ' or ' in text else 'list'
    return node(op, tuple(
        node('name', (part,)) if len(part) == 1 else word(part, node)
        for part in map(str.strip, listed)))
  if low in _MEANT:
    op, *args = _MEANT[low]
    return node(op, tuple(args))
  # Few words are written in capitals alone; of others, the case may matter.
  if text.isupper() and 1 < len(text) < 5 and text.lower() not in _SMALL:
    low = text
  return node('word', (low,))


def words(text: str, node: Callable[..., Any]) -> Any | None:
  r"""Reads a time, a date, a choice or prose, in \text or not.

  Args:
    text: an answer without delimiters around it.
    node: maker of nodes, of an op and its arguments.

  Returns:
    A node ('word', 'list', 'name' for the letter of a choice), or None.
  """
  plain = _TEXT.sub(r' \1 ', text).replace(r'\!', '').replace(r'\,', ' ')
  plain = re.sub(r'\s+', ' ', plain).strip(' .,?"`*')
  if re.fullmatch(r"'[^']*'|[^']*[a-z]!", plain):
    plain = plain.strip("'!")
  if _DATE.fullmatch(plain):  # and no quotient of quotients
    return node('word', (plain,))
  if found := _CHOICE.fullmatch(plain):
    return node('name', (found['a'] or found['b'],))
  if found := _TIME.fullmatch(plain) or _HOUR.fullmatch(plain):
    part = found.groupdict()
    second = f":{part['s']}" if part.get('s') else ''
    return node('time', (f"{int(part['h'])}:{part.get('m') or '00'}{second}",
                         (part['half'] or '').lower()))
  if date := _date(plain.lower()):
    return node('word', (date,))
  return _prose(text, plain, node)


def _date(low: str) -> str | None:
  found = _MONTH.search(low)
  if not found or not re.search('[0-9]', low):
    return None
  numbers = [int(n) for n in re.findall(
      r'(?<![0-9])([0-9]{1,4})(?:st|nd|rd|th)?\b', low)]
  numbers.sort(key=lambda n: n > 31)  # the year is the last
  rest = re.sub(r'[0-9]{1,4}(?:st|nd|rd|th)?|,|\bof\b|\bthe\b|\s', '',
                low.replace(found[0], '', 1))
  if rest:
    return None
  month = _MONTHS.index(found[0][:3]) + 1
  return f'month {month} ' + ' '.join(map(str, numbers))


def _prose(text: str, plain: str, node: Callable[..., Any]) -> Any | None:
  """Reads words alone; letters in a row may be a product."""
  in_text = re.sub(r'\s', '', _TEXT.sub('', text)) == ''
  if re.search(r'[\\{}=<>+*/^_()0-9]', plain) or not re.search(
      '[a-zA-Z]{2}', plain):
    return None
  runs = re.findall('[a-zA-Z]+', plain)
  if not in_text and not is_word(plain) and not (
      len(runs) == 1 and len(runs[0]) > 4
      or len(runs) > 1 and sum(len(run) > 2 for run in runs) > 1):
    return None
  if len(runs) == 1 and plain.lower() in tokens.FUNCTIONS | {'pi'}:
    return None
  if plain.lower() in _NUMBERS:
    return node('number', (_NUMBERS[plain.lower()],))
  return word(plain, node)
