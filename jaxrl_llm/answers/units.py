r"""Units, counted things and words of answers.

A unit is compared where both answers have one. A counted thing (5 apples) is
not: the number is the answer.
"""

import itertools
import re
from typing import Any, Callable, Sequence

from jaxrl_llm.answers import tokens

# Between bars: spellings of a unit; some are products or quotients of others.
# These have prefixes, as symbols or words.
_SCIENCE = '''
m meter metre|g gram gm gs gramme|s second sec|L l liter litre|A ampere amp
K kelvin|mol mole|N newton|J joule|W watt|Pa pascal|Hz hertz|V volt|C coulomb
F farad|H henry henries|T tesla|G gauss|mol/L M molar|S siemens|Wb weber|Ω ohm
eV electronvolt|erg|bar|cal calorie|pc parsec|ly lightyear|yr year|B byte|bit
Da u amu dalton|W*h Wh|A*h Ah|N*m Nm|J*s Js|Pa*s Pas|V*s Vs|N*s Ns'''
_OTHERS = '''
cm centimeter centimetre|dm decimeter decimetre|dL deciliter decilitre|torr
dB decibel|kΩ kilohm|hPa hectopascal|in inch inches|ft foot feet|yd yard
mi mile|Å angstrom|AU|lb pound|oz ounce|ton|kt kiloton|t tonne|min minute
h hr hour|day|week|month|decade|century centuries|gal gallon|qt quart|pt pint
cup|acre|ha hectare|deg degree|rad radian|degree_C celsius|degree_F fahrenheit
atm atmosphere|mmHg|dollar usd bucks|cent|euro eur|gbp|yuan rmb|yen jpy
rupee rs|mi/h mph|km/h kph kmph|mi/gal mpg|knot|rpm|bpm|dozen|unit|man men
person people|woman women|child children|M_odot|L_odot|R_odot|lightspeed
1 atom molecule particle photon electron proton neutron nucleus nuclei ion'''
_PREFIXES = dict(zip('kGTMPmµunpf', (
    'kilo giga tera mega peta milli micro micro nano pico femto'.split())))
# Runs of two letters that are units in mathematics, too; others are products.
_RUNS = frozenset('cm mm km nm in ft yd mi gm kg mg lb oz ms hr yr ml mL qt pt '
                  'ha Hz kJ kW kN Pa eV dB AU'.split())


def _measures() -> tuple[dict[str, str], dict[str, str]]:
  """Returns units by their spelling, and by it in small letters.

  In small letters, a unit without a prefix comes first. Milli may be mega, but
  for hertz, and peta is none.
  """
  science, others = (
      [line.split() for line in re.split(r'[|\n]', table.strip())]
      for table in (_SCIENCE, _OTHERS))
  exact = {name: names[0] for names in (*science, *others) for name in names}
  low = {name.lower(): unit for name, unit in exact.items() if len(name) > 1}
  for (prefix, word), names in itertools.product(_PREFIXES.items(), science):
    unit = prefix.replace('u', 'µ') + names[0]
    for name in names:
      exact.setdefault(prefix + name, unit)
      low.setdefault(word + name.lower(), unit)
      if prefix not in 'mMP' or prefix + name == 'MHz':
        low.setdefault((prefix + name).lower(), unit)
  return exact, low


_EXACT, _LOW = _measures()
# Other ways to write units, and the one that is read.
_SPELLINGS = [(re.compile(pattern, re.IGNORECASE), text) for pattern, text in (
    (r'\\(?:cdot|times)', '*'), (r'\\mu\s*', 'µ'), (r'\bper\b', '/'),
    (r'\\AA', 'Å'), (r'(?:(?<=\b[kmg]) )?\\Omega', 'Ω'),
    (r'_ ?\{? ?(?:\\odot|sun) ?\}?', '_odot'),
    (r'(?<=V) ?/ ?(?-i:c)\b', '/lightspeed'),
    (r'\s*\^\s*(?:\{\s*(-?)\s*(\d)\s*\}|(-?\d))', r'^\1\2\3'),
    (r'\\frac ?\{([^{}]*)\} ?\{([^{}]*)\}', r'((\1)/(\2))'),
    (r'\b(?:square|sq\.?)\s+([a-z]+)|\b([a-z]+)\s+squared\b', r'\1\2^2'),
    (r'\b(?:cubic|cu\.?)\s+([a-z]+)|\b([a-z]+)\s+cubed\b', r'\1\2^3'),
    (r'\bdegrees?\s+(?=celsius|fahr)|\bfl(?:uid)?\.?\s+(?=oz|ounce)|\s+old$'
     r'|(?<=electron)[ -](?=volt)|(?<=light)[ -](?=year)', ''))]
_PART = re.compile(
    r'(?P<name>[^\W\d_]+(?:_odot)?|(?<![\w^-])1(?=\)?/))(?:\^(?P<power>-?\d))?|'
    r'(?P<mark>[/()])|[^\s*.-]|-\d')
CURRENCIES = {'$': 'dollar', r'\$': 'dollar', '€': 'euro', '£': 'gbp',
              '¥': 'yen', '₹': 'rupee', 'USD': 'dollar', 'US$': 'dollar'}
SCALES = {'hundred': 10**2, 'thousand': 10**3, 'million': 10**6,
          'billion': 10**9, 'trillion': 10**12, 'dozen': 12}
# Signs that a unit may have.
SIGNS = frozenset([*'/*^-{}()%._', r'\cdot', r'\times', r'\odot', r'\mu',
                   r'\Omega', r'\AA', r'\frac', *CURRENCIES])
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
_NO_PLURAL = re.compile('(?:ths|illions|ss)$')  # twelfths, quintillions, less


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
  signs = {**CURRENCIES, '%': '%'}
  if len(parts) == 1 and parts[0].text in signs:
    return signs[parts[0].text], 1
  # Without \text, a letter behind a number is a variable. 12M are 12 million.
  runs = [p.text for p in parts if p.kind == 'letters' and not any(
      p.kind in ('text', 'mark') or p.text in (r'\odot', r'\AA')
      for p in parts)]
  if not bare and (
      runs and all(len(run) < 3 and run not in _RUNS for run in runs)
      or [(p.text, p.spaced) for p in parts] == [('M', False)]):
    return None
  text = ''.join((' ' if p.spaced or p.kind != 'sign' else '') + p.text
                 for p in parts)
  for pattern, spelling in _SPELLINGS:
    text = pattern.sub(spelling, text)
  text = re.sub(r'^\s*\(([^()]*)\)$', r'\1', text)
  if re.search(r'\d', re.sub(r'\^-?\d|1\)?/', '', text)):
    return None
  scale, words = 1, text.split()
  while words and words[0].lower() in SCALES:
    scale *= SCALES[words.pop(0).lower()]
  if not words:
    return ('', scale) if scale > 1 else None
  name = _phrase(' '.join(words), any_thing)
  return None if name is None else (name, scale)


def _phrase(text: str, any_thing: bool) -> str | None:
  """Returns the one spelling of a unit, '?' for a thing, None if neither."""
  if name := _unit(text):
    return name
  low = text.lower().strip(' ().,')
  if low in ('percent', 'percents', 'per cent', 'pct', '%'):
    return '%'
  if ' of ' in text:
    return _phrase(text.partition(' of ')[0], any_thing)
  words = re.split(r'[\s/-]+', low)
  if any(not word.isalpha() for word in words) or _NOT_THINGS & set(words):
    return None
  if any_thing or words[-1] in _THINGS:
    return '?'
  words = re.split(' each|/', low)[0].split()
  return '?' if words and _is_thing(words) else None


def _is_thing(words: Sequence[str]) -> bool:
  last = words[-1]
  if last.removesuffix('s') in _COUNTS:
    return False
  return len(words) <= 3 and (
      last in _THINGS or len(last) > 2 and last in _LOW or bool(
          re.fullmatch('[a-z]{2,}s', last) and not _NO_PLURAL.search(last)))


def _unit(text: str) -> str | None:
  """Returns the one spelling of a unit with its powers; None if unknown."""
  powers: dict[str, int] = {}
  sign, outer = 1, [1]
  for part in _PART.finditer(text):
    if part['mark'] == '/':
      sign = -outer[-1]
    elif part['mark'] == '(':
      outer.append(sign)
    elif part['mark']:
      sign = outer.pop() if len(outer) > 1 else sign
    elif (one := _one(part['name'] or '')) is None:
      return None
    else:
      for i, factors in enumerate(one.split('/')):
        for name in factors.split('*'):
          powers[name] = powers.get(name, 0) + sign * (-1) ** i * int(
              part['power'] or 1)
  powers.pop('1', None)
  return ' '.join(f'{name}^{power}' if power != 1 else name
                  for name, power in sorted(powers.items()) if power) or None


def _one(name: str) -> str | None:
  low = name.lower()
  single = low.removesuffix('s') if name[1:].islower() else low
  return _EXACT.get(name) or _LOW.get(low) or _LOW.get(single)


# Words.

_SMALL = frozenset('yes no odd even true false none all red one two six ten '
                   'dne zero four five nine both ann bob'.split())
NUMBERS = {word: i for i, word in enumerate(
    'zero one two three four five six seven eight nine ten eleven twelve '
    'thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty'
    .split())}
_COUNTS = frozenset([*tokens.FUNCTIONS, *SCALES, *NUMBERS, *(
    'pi opposite lakh crore double triple inverse mod').split()]) - {'zero'}
_SAME = {other: meant for meant, others in {
    'no solution': [
        'no solutions', 'there is no solution', 'there are no solutions',
        'no real solution', 'no real solutions', 'empty set', 'none'],
    'does not exist': [
        'dne', 'not exist', 'doesnt exist', 'limit does not exist',
        'undefined'],
    'all real numbers': ['all reals', 'real numbers', 'every real number'],
    'infinity': ['positive infinity']}.items() for other in others}
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
  in_text = not _TEXT.sub('', text).strip()
  if re.search(r'[\\{}=<>+*/^_()0-9]', plain) or not re.search(
      '[a-zA-Z]{2}', plain):
    return None
  runs = re.findall('[a-zA-Z]+', plain)
  if not in_text and not is_word(plain) and not (
      len(runs) == 1 and len(runs[0]) > 4
      or sum(len(run) > 2 for run in runs) > 1):
    return None
  if plain.lower() in tokens.FUNCTIONS | {'pi'}:
    return None
  if plain.lower() in NUMBERS:
    return node('number', (NUMBERS[plain.lower()],))
  return word(plain, node)
