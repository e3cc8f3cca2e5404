r"""Units, counted things and words of answers.

A unit is compared where both answers have one. A counted thing (5 apples) is
not: the number is the answer.
"""

import re
from typing import Any, Callable, Sequence

from jaxrl_llm.answers import tokens

# Spellings of the same units. Those of one letter count only where the letter
# is set as text, except for the signs of the micrometre and the ohm.
_MEASURES = '''
in inch inches ins|ft foot feet|yd yard|mi mile|lb pound lbs|oz ounce|ton
t tonne|min minute mins|h hr hour hrs|day|week|month|decade
century centuries|gal gallon|quart qt|pint pt|cup|acre|hectare ha|deg degree
rad radian|dollar usd dollars bucks|cent cents|euro eur|gbp|yuan rmb|yen jpy
rupee rs|unit|people person persons|men man|women woman|child children
percentage-points|kWh kwh|atm atmosphere|torr Torr mmHg|erg|AU au|ly lightyear
Å angstrom Angstrom|amu u Da dalton|dB decibel|c|sunM|sunL|sunR|knot|rpm|bpm
dozen|degree_C celsius|degree_F fahrenheit|kg Kg KG|km Km KM
'''
# Symbols and names that take the prefixes of the SI.
_SI = '''
m meter metre|g gram gm|s second sec|A amp ampere|K kelvin|mol mole|Hz hertz
N newton|Pa pascal|J joule|W watt|V volt|C coulomb|F farad|ohm|T tesla|H henry
l L liter litre|eV|bar|cal calorie|pc parsec|yr year|M molar|Wb weber|G gauss
B byte|bit
'''
_PREFIXES = {'k': 'kilo', 'M': 'mega', 'G': 'giga', 'T': 'tera', 'c': 'centi',
             'd': 'deci', 'm': 'milli', 'u': 'micro', 'n': 'nano', 'p': 'pico',
             'f': 'femto', '': ''}


def _table() -> dict[str, str]:
  """Returns each spelling of a unit, and the one it is compared by."""
  plain, si = ([line.split() for line in re.split(r'[|\n]', text.strip())]
               for text in (_MEASURES, _SI))
  found = {name: names[0] for names in plain for name in names}
  for prefix, word in reversed(_PREFIXES.items()):
    for names in si:
      found |= {start + name: prefix + names[0] for name in names
                for start in (prefix, word) if start + name != 'M'}
  for name in [*found][::-1]:  # mhz and mpa begin with mega
    if len(name) > 2 or name[0] == 'k':
      found.setdefault(name.lower(), found[name])
  return found


_UNITS = _table()
_COMPOUND = {'mph': 'mi/h', 'kph': 'km/h', 'kmph': 'km/h', 'mpg': 'mi/gal'}
# Runs of letters that are no text are units only if they are of these, or if
# white space stands before them.
_RUNS = frozenset(
    'cm mm km nm kg mg ml ft yd mi lb oz hr in gal qt pt mph rad deg'.split())
CURRENCIES = {'$': 'dollar', r'\$': 'dollar', '€': 'euro', '£': 'gbp',
              '¥': 'yen', '₹': 'rupee', 'USD': 'dollar', 'US$': 'dollar'}
SCALES = {'hundred': 10**2, 'thousand': 10**3, 'million': 10**6,
          'billion': 10**9, 'trillion': 10**12, 'dozen': 12}
# Signs that a unit may have.
SIGNS = frozenset(['/', r'\cdot', r'\times', '*', '^', '-', '{', '}', '%', '.',
                   '(', ')', '_', r'\odot', r'\Omega', r'\mu', r'\AA', r'\frac',
                   *CURRENCIES])
BEGINNING = frozenset([r'\Omega', r'\mu', r'\AA', r'\frac'])
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
  if len(parts) == 1 and parts[0].text in (*CURRENCIES, '%'):
    return CURRENCIES.get(parts[0].text, '%'), 1
  # Without \text, a letter behind a number is a variable.
  if not bare and not any(
      p.kind in ('text', 'mark') or p.text in (r'\odot', r'\AA')
      or p.kind == 'letters' and len(p.text) > 1 and (
          p.spaced or p.text in _RUNS or len(p.text) > 3)
      or p.text == r'\Omega' and not any_thing for p in parts):
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
  text = re.sub(
      r'\s*\^\s*(\{\s*)?(-?)\s*(\d)(?(1)\s*\})', r'^\2\3', text)
  for sign, name in ((r'\mu ', 'u'), (r'\mu', 'u'), (r'\Omega', 'ohm'),
                     (r'\AA', 'angstrom')):
    text = text.replace(sign, name)
  text = re.sub(r'([MLR])_\{?\s*\\odot\s*\}?', r'sun\1', text)
  text = re.sub(r'\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}', r'\1/\2', text)
  text = re.sub(r'(?i)degrees?\s+(?=[cf])', '', text)
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
      one = _one(found[1]) if found else None
      if found and not one and not i and _is_thing([name]):
        continue  # atoms/cm^3
      if not found or not one:
        return None
      for j, factor in enumerate(one.split('/')):
        sign = (-1) ** (bool(i) + j)
        powers[factor] = powers.get(factor, 0) + sign * int(found[2] or 1)
  return ' '.join(f'{name}^{power}' if power != 1 else name
                  for name, power in sorted(powers.items()) if power) or None


def _one(name: str) -> str | None:
  for text in (name, name.lower()) if len(name) > 2 else (name,):
    if found := _COMPOUND.get(text) or _UNITS.get(text) or _UNITS.get(
        text.removesuffix('s')):
      return found
  return None


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
    r'(?P<h>[01]?[0-9]|2[0-4])\s*(?P<half>[ap])\.?\s?m\.?', re.IGNORECASE)
_DATE = re.compile(r'[0-9]{1,2}/[0-9]{1,2}/(?:[0-9]{2}|[0-9]{4})')
_MONTHS = ('january february march april may june july august september '
           'october november december').split()
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
  low = re.sub(r'(?<=[0-9])(?:st|nd|rd|th)|\b(?:of|the)\b', '', low)
  words = re.findall('[a-z]+|[0-9]+', low)
  names = [word for word in words if word.isalpha()]
  numbers = sorted((w for w in words if w.isdigit()), key=lambda n: len(n) > 2)
  is_date = numbers and len(names) == 1 and len(names[0]) > 2 and any(
      month.startswith(names[0]) for month in _MONTHS)
  return ' '.join([names[0][:3], *numbers]) if is_date else None


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
