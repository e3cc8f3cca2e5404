r"""Spellings of mathematical answers: LaTeX forms and plain numbers.

Every function maps a text to a text or a number by rules alone. Nothing is
parsed or computed here, so that any text takes linear time.
"""

import fractions
import re

_UNICODE = {
    '−': '-', '–': '-', '×': r'\times ', '·': r'\cdot ', '⋅': r'\cdot ',
    '÷': '/', '≤': r'\le ', '≥': r'\ge ', '≠': r'\ne ', '∞': r'\infty ',
    '∅': r'\emptyset ', '∪': r'\cup ', '∩': r'\cap ', '∈': r'\in ',
    '°': r'^\circ ', 'π': r'\pi ', '±': r'\pm ', '…': r'\ldots ', '′': "'",
    '½': r'\frac{1}{2}', '¼': r'\frac{1}{4}', '¾': r'\frac{3}{4}',
    '⅓': r'\frac{1}{3}', '⅔': r'\frac{2}{3}', '²': '^2', '³': '^3',
    '€': '', '£': '', '\xa0': ' ', '\u2009': ' ', '\u202f': ' ', '→': r'\to '}
_SYMBOLS = re.compile('|'.join(map(re.escape, _UNICODE)))
_NUMERAL = r'(?:[0-9]+(?:\.[0-9]+)?)'

# Rules in their order: what is found, and what replaces it.
_RULES = [(re.compile(pattern), by) for pattern, by in [
    (r'√\s*\(([^()]*)\)', r'\\sqrt{\1}'),
    (r'√\s*([0-9]+|[a-zA-Z])', r'\\sqrt{\1}'),
    (r'\\(?:displaystyle|limits)(?![a-zA-Z])', ' '),
    (r'\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\.?', ''),
    (r'\\text(?:color)\s*\{[a-zA-Z]*\}', ''),
    (r'\\color\s*\{[a-zA-Z]*\}', ''),
    (r'\{\\(?:rm|bf|it)\s+([^{}]*)\}', r'\\text{\1}'),
    (r'\\(?:text(?:bf|it|rm|sf|normal|up)|math(?:rm|bf|it|sf|normal)|[mh]box|'
     r'operatorname|emph|boldsymbol|bm|underline)\s*\{', r'\\text{'),
    (r'\\text\s*\{\s*(?:,?\s*(?:and|or)|,)\s*\}', ' , '),
    (r',?\s+(?:and|or)\s+', ' , '),
    # A thin space or a comma in braces between digits groups them by three.
    (r'(?<=[0-9])(?:,\\!|\{\s*,\s*\}|\\[,;:!]|\\ |~)\s*(?=[0-9]{3}(?![0-9]))',
     ''),
    (r'(?<!\\)\\!', ''),
    (r'(?<!\\)\\[,;: ]|~|\\q?quad(?![a-zA-Z])', ' '),
    (r'\\[dtc]frac(?![a-zA-Z])', r'\\frac'),
    (r'\\leq?(?:slant)?(?![a-zA-Z])|<=', r'\\le '),
    (r'\\geq?(?:slant)?(?![a-zA-Z])|>=', r'\\ge '),
    (r'\\lt(?![a-zA-Z])', '<'), (r'\\gt(?![a-zA-Z])', '>'),
    (r'\\lbrace(?![a-zA-Z])', r'\\{'), (r'\\rbrace(?![a-zA-Z])', r'\\}'),
    (r'\\langle(?![a-zA-Z])', '('), (r'\\rangle(?![a-zA-Z])', ')'),
    (r'\\varnothing(?![a-zA-Z])|\\\{\s*\\\}', r'\\emptyset'),
    (r'\\colon(?![a-zA-Z])', ':'), (r'\{:\}', ':'),
    (r'\\(?:text\{\s*degrees?\s*\}|degrees?(?![a-zA-Z]))', r'^\\circ'),
    (r'\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))', r'^\\circ '),
    (r'\\\$|(?<!\\)\$', ''), (r'\\?%', r'\\%'),
    (r'(?<![\\a-zA-Z])(sqrt|pi|infty|sin|cos|tan|cot|sec|csc|log|ln)'
     r'(?![a-zA-Z])', r'\\\1'),
    (r'(?<![\\a-zA-Z])infinity(?![a-zA-Z])', r'\\infty'),
    (r'\\sqrt\s*\(([^()]*)\)', r'\\sqrt{\1}'),
    (r'\\sqrt\s*([0-9a-zA-Z])', r'\\sqrt{\1}'),
    (r'\\phantom\s*(?:\{[^{}]*\}|.)', ''),
    (r'\\frac\s*(\\pi)(?![a-zA-Z])', r'\\frac{\1}'),
    (r'\\frac\s*([0-9a-zA-Z])\s*([0-9a-zA-Z])', r'\\frac{\1}{\2}'),
    (r'\\frac\s*([0-9a-zA-Z])\s*\{', r'\\frac{\1}{'),
    (r'\\frac\s*(\{[^{}]*\})\s*([0-9a-zA-Z])', r'\\frac\1{\2}'),
    (r'(?<=[0-9])\.(?![0-9.]|\s*\\(?:overline|bar|dot))', ''),
    (r'(?<![0-9.])\.(?=[0-9])', '0.'),
    (rf'(?<![A-Za-z0-9._])({_NUMERAL})[eE]([-+]?[0-9]+)(?![0-9.A-Za-z_])',
     r'\1\\cdot 10^{\2}'),
]]
_MATH_TEXT = re.compile(r'\\text\s*\{\s*([^a-zA-Z{}\\]*[a-zA-Z]?[^a-zA-Z{}\\]*)'
                        r'\s*\}')
_DELIMITERS = [('$$', '$$'), ('$', '$'), (r'\(', r'\)'), (r'\[', r'\]'),
               ('**', '**')]
_GROUPED = re.compile(r'(?<![0-9,.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])')


_PLAIN = re.compile(
    r'[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?')


def plain(text: str) -> fractions.Fraction | None:
  """Returns the value of an integer or decimal, with or without commas."""
  if len(text) < 300 and _PLAIN.fullmatch(text):
    return fractions.Fraction(text.replace(',', ''))
  return None


def _ended(text: str) -> str:
  """Removes a full stop and semicolons at the end, but no ellipsis."""
  return text if text.endswith('..') else text.rstrip('.; ')


def light(text: str) -> str:
  """Returns a form that the quickest respellings of an answer share."""
  text = _ended(text.strip().strip('$').strip())
  if (value := plain(text)) is not None:
    return str(value)
  text = re.sub(r'\\(?:left|right)(?![a-z])|\\!', '', text)
  text = re.sub(r'\\[dt]frac(?![a-z])', r'\\frac', text)
  # Spaces between letters or digits stay, since '1 1/2' is not '11/2'.
  return re.sub(r'(?<!\w) | (?!\w)', '', re.sub(r'\s+', ' ', text))


def clean(text: str) -> str:
  """Returns a LaTeX spelling that many ways to write an answer share.

  The value stays the same. Commas between groups of three digits are removed if
  the text has no other comma and no bracket, since '(1,234)' is a pair.
  """
  text = _SYMBOLS.sub(lambda found: _UNICODE[found[0]], text).strip()
  for begin, end in _DELIMITERS:
    if text.startswith(begin) and text.endswith(end) and len(text) > len(
        begin + end):
      text = text[len(begin):-len(end)].strip()
  text = _ended(text)
  for pattern, by in _RULES:
    text = pattern.sub(by, text)
  text = re.sub(r'\s+', ' ', _MATH_TEXT.sub(r' \1 ', text)).strip()
  text = _ended(text).lstrip('.; ')
  text = re.sub(r'^\{([^{}]*)\}$', r'\1', text)
  if not re.search(r'[(\[]|\\\{', text):
    alone = _GROUPED.sub(lambda found: found[0].replace(',', ''), text)
    text = text if ',' in alone else alone
  return text


_SIGN = r'\s*(?P<sign>[-+]?)\s*'
_RATIO = (rf'(?:\\frac\s*\{{\s*(?P<top>-?{_NUMERAL})\s*\}}\s*'
          rf'\{{\s*(?P<low>-?{_NUMERAL})\s*\}}|'
          rf'(?P<over>{_NUMERAL})\s*/\s*(?P<under>-?{_NUMERAL}))')
_POWER = r'10\s*\^\s*(?:\{\s*(?P<exp>[-+]?[0-9]+)\s*\}|(?P<digit>[0-9]))'
_NUMBERS = [re.compile(_SIGN + rest + r'\s*') for rest in (
    rf'(?P<whole>{_NUMERAL})', _RATIO,
    r'(?P<whole>[0-9]+\.[0-9]*)\s*\\(?:overline|bar|dot)\s*'
    r'(?:\{\s*(?P<again>[0-9]+)\s*\}|(?P<once>[0-9]))',
    rf'(?P<whole>[0-9]+)\s*(?=\\frac){_RATIO}',
    rf'(?P<whole>[0-9]+)\s+(?=[0-9]){_RATIO}',
    rf'(?P<whole>{_NUMERAL})\s*(?:\\times|\\cdot|\*)\s*{_POWER}', _POWER)]
_LARGEST = 4000  # digits; Python writes integers of at most 4,300


def number(text: str) -> fractions.Fraction | None:
  """Returns the value of a plain number in the spelling of `clean`, or None.

  Plain numbers are decimals, also repeating ones, fractions of decimals, mixed
  numbers, and numbers times a power of ten. All of them are exact.
  """
  while re.fullmatch(r'\([^()]*\)', text):
    text = text[1:-1]
  for pattern in _NUMBERS:
    if found := pattern.fullmatch(text):
      break
  else:
    return None
  part = found.groupdict()
  top, low = (part.get('top') or part.get('over'),
              part.get('low') or part.get('under'))
  exponent = int((part.get('exp') or part.get('digit') or '0')[:9])
  if sum(map(len, filter(None, part.values()))) + abs(exponent) > _LARGEST:
    return None
  value = fractions.Fraction(part.get('whole') or (0 if top else 1))
  if top:
    if not fractions.Fraction(low):
      return None
    value += fractions.Fraction(top) / fractions.Fraction(low)
  if again := part.get('again') or part.get('once'):
    places = len(part['whole'].partition('.')[2])
    value += fractions.Fraction(
        int(again), (10 ** len(again) - 1) * 10 ** places)
  value *= fractions.Fraction(10) ** exponent
  return -value if part['sign'] == '-' else value


# Units of measure. Each line: spellings of the same unit.
_MEASURES = '''
m meter metre|cm centimeter centimetre|mm millimeter millimetre
km kilometer kilometre|inch inches in|ft foot feet|yd yard|mi mile
g gram|kg kilogram|mg milligram|lb pound lbs|oz ounce|ton|t tonne
s sec second|min minute|h hr hour|day|week|month|year yr
l liter litre|ml milliliter millilitre|gallon gal|quart|pint|acre
degree deg|radian rad|dollar usd|cent|euro|rupee|mph|kph|unit|people|men|women
children|percentage-points|hertz hz|joule j|watt w|volt v|newton n|kelvin k
'''
_UNITS = {name: line.split()[0] for line in re.split(
    r'[|\n]', _MEASURES.strip()) for name in line.split()}
_SCALES = {'hundred': 10**2, 'thousand': 10**3, 'million': 10**6,
           'billion': 10**9, 'trillion': 10**12, 'dozen': 12}
# Words that end with s, or end a phrase, and are no things that one counts.
_NOT_THINGS = frozenset(
    'is was has does times plus minus less this thus yes as modulus us '
    'perhaps hundreds thousands millions billions trillions dozens '
    'plus-minus factorials tens ones halves thirds quarters fifths sixths '
    'sevenths eighths ninths tenths hundredths thousandths and or not no '
    'than at least most about over under below above between wrong if for '
    'negative positive of the only square cubic'.split())
_TRAILING = re.compile(
    r'^(?P<rest>.*?[0-9}!)iex])\s*(?:\\text\s*\{(?P<text>[^{}]*)\}|'
    r'(?P<bare>(?<![a-zA-Z])[a-zA-Z][a-zA-Z/. -]*))\s*'
    r'(?:\^\s*\{?\s*(?P<power>[23])\s*\}?)?\s*$')
_DEGREES = re.compile(
    r'^(?P<rest>.*)\^\\circ\s*(?:\\text\s*\{\s*)?(?P<scale>[CF]?)(?:\s*\})?\s*$')


def unit(text: str) -> tuple[str, str, int]:
  """Separates a trailing unit, counted thing or word such as 'million'.

  Args:
    text: an answer in the spelling of `clean`.

  Returns:
    The rest; the unit in one spelling ('' for none, '?' for a counted thing,
    which is not compared); and the factor of a word for a large number.
  """
  if found := _DEGREES.match(text):
    if '^' not in found['rest'] and '\\sin' not in text and '\\cos' not in (
        text) and '\\tan' not in text:
      return found['rest'], ('degree ' + found['scale']).strip(), 1
  if text.endswith(r'\%'):
    return text[:-2].rstrip(), '%', 1
  if not (found := _TRAILING.match(text)):
    return text, '', 1
  phrase = found['text'] if found['text'] is not None else found['bare']
  words = phrase.lower().replace('.', ' ').split()
  bare = found['text'] is None
  scale = 1
  if words and words[0] in _SCALES:
    scale = _SCALES[words.pop(0)]
  if not words:
    return (found['rest'], '', scale) if scale > 1 else (text, '', 1)
  if words == ['percent']:
    return found['rest'], '%', scale
  if (name := _measure(words, bare)) is None:
    return text, '', 1
  if found['power'] and name != '?':
    name += '^' + found['power']
  return found['rest'], name, scale


def _measure(words: list[str], bare: bool) -> str | None:
  """Returns the one spelling of a unit, '?' for a thing, None if neither."""
  power = ''
  words = words[:-1] if words[-1] == 'old' and len(words) > 1 else words
  if words[0] in ('square', 'sq', 'cubic', 'cu') and len(words) > 1:
    power = '^2' if words[0][0] == 's' else '^3'
    words = words[1:]
  names = ' '.join(words).replace(' per ', '/').split('/')
  units = [_UNITS.get(n.strip()) or _UNITS.get(n.strip().removesuffix('s'))
           for n in names]
  # Without \text, one letter after a number is a variable.
  if all(units) and not (bare and len(words) == 1 and len(words[0]) == 1):
    return '/'.join(units) + power
  if len(words) <= 3 and not _NOT_THINGS & set(words) and re.fullmatch(
      '[a-z]{2,}s', words[-1]) and all(w.isalpha() for w in words):
    return '?'
  return None
