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
    '⁄': '/', 'º': r'^\circ ', '。': '.', '∛': r'\sqrt[3]',
    '½': r'\frac{1}{2}', '¼': r'\frac{1}{4}', '¾': r'\frac{3}{4}',
    '⅓': r'\frac{1}{3}', '⅔': r'\frac{2}{3}', '→': r'\to ',
    '\xa0': ' ', '\u2009': ' ', '\u202f': ' '}
_SYMBOLS = re.compile('|'.join(map(re.escape, _UNICODE)))
_SCRIPTS = re.compile('([⁻⁰¹²³⁴-⁹]+)|[₀-₉]+')
_DIGITS = str.maketrans('⁻⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉', '-0123456789' '0123456789')
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
     r'operatorname|emph|boldsymbol|bm|underline|bf|rm|it)\s*\{', r'\\text{'),
    (r'\\(?:fbox|boxed|ensuremath)\s*\{', '{'),
    (r'\\text\s*\{\s*\\?%\s*\}', '%'),
    (r'\\\\\s*\[[0-9.]+(?:pt|e[mx]|[cm]m)\]', r'\\\\ '),
    (r'\\text\s*\{\s*(?:,?\s*(?:and|or)|,)\s*\}', ' , '),
    (r',?\s+(?:and|or)\s+', ' , '),
    # A thin space or a comma in braces between digits groups them by three.
    (r'(?<=[0-9])(?:,\\!|\{\s*,\s*\}|\\[,;:!]|\\ |~)\s*(?=[0-9]{3}(?![0-9]))',
     ''),
    (r'(?<!\\)\\!', ''),
    (r'(?<!\\)\\[,;: ]|~|\\q?quad(?![a-zA-Z])', ' '),
    (r'\\+$', ''), (r'\\text\s*\{\s*([eiknxyz])\s*\}', r' \1 '),
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
    *[(rf'^(?:{sign})\s*([0-9][0-9.,]*)$', rf'\1\\text{{ {name}}}')
      for sign, name in ((r'US\$|USD\s|\\?\$', 'dollars'), ('€', 'euros'),
                         ('£', 'gbp'))],
    (r'\\\$|(?<!\\)\$|[€£]', ''), (r'\\?%', r'\\%'),
    (r'(?<![\\a-zA-Z])(sqrt|pi|infty|sin|cos|tan|cot|sec|csc|log|ln)'
     r'(?![a-zA-Z])', r'\\\1'),
    (r'(?<![\\a-zA-Z])infinity(?![a-zA-Z])', r'\\infty'),
    (r'\\sqrt\s*\(([^()]*)\)', r'\\sqrt{\1}'),
    (r'\\sqrt\s*([0-9a-zA-Z])', r'\\sqrt{\1}'),
    (r'\\sqrt\s*(\[[0-9]+\])\s*([0-9a-zA-Z])', r'\\sqrt\1{\2}'),
    (r'\\phantom\s*(?:\{[^{}]*\}|.)', ''),
    (r'\\frac\s*(\\pi)(?![a-zA-Z])', r'\\frac{\1}'),
    (r'\\frac\s*([0-9a-zA-Z])\s*([0-9a-zA-Z])', r'\\frac{\1}{\2}'),
    (r'\\frac\s*([0-9a-zA-Z])\s*\{', r'\\frac{\1}{'),
    (r'\\frac\s*(\{[^{}]*\})\s*([0-9a-zA-Z])', r'\\frac\1{\2}'),
    (r'\\log\s*_\s*(?:e|\{\s*e\s*\})', r'\\ln '),
    (r'(?<=[0-9a-zA-Z)}])\s*\*\*\s*(?=[-0-9a-zA-Z({])', '^'),
    (r'(?<=[0-9])\s*x\s*(?=10\s*\^)', r'\\times '),
    (r'(?<=[0-9])\.(?![0-9.]|\s*\\(?:overline|bar|dot))', ''),
    (r'(?<![0-9.])\.(?=[0-9])', '0.'),
    (rf'(?<![A-Za-z0-9._])({_NUMERAL})[eE]([-+]?[0-9]+)(?![0-9.A-Za-z_])',
     r'\1\\cdot 10^{\2}'),
]]
# Behind a number it is a unit.
_MATH_TEXT = re.compile(
    r'(?<![0-9}])(?<![0-9}] )\\text\s*\{\s*'
    r'([^a-zA-Z{}\\]*[a-zA-Z]?[^a-zA-Z{}\\]*)\s*\}')
_DELIMITERS = [('$$', '$$'), ('$', '$'), (r'\(', r'\)'), (r'\[', r'\]'),
               ('**', '**'), ('"', '"'), ('`', '`')]
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
  text = _SCRIPTS.sub(
      lambda found: ('^{' if found[1] else '_{')
      + found[0].translate(_DIGITS) + '}', text)
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
degree deg|radian rad|dollar usd|cent|euro eur|gbp|rupee|mi/h mph|km/h kph
unit|people|men|women|children|percentage-points|hertz hz|joule j|watt w|volt v
newton n|kelvin k|erg
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
    'negative positive of the only square cubic negatives powers squares cubes '
    'roots pairs scores grosses divides exceeds fails remains equals unknowns '
    'factors'.split())
_THINGS = frozenset('sheep fish mice deer'.split())
_PARTS = re.compile('(?:ths|illions)$')  # twelfths, quintillions
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
  if words in (['percent'], ['percents']):
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
  if 'of' in words[1:]:
    words = words[:words.index('of')]
  if words[-1] in _THINGS:
    return '?'
  units = [_product(name.split()) for name in ' '.join(words).replace(
      ' per ', '/').split('/')]
  # Without \text, letters after a number are variables.
  if all(units) and not (bare and all(len(word) == 1 for word in words)):
    return '/'.join(units) + power
  if len(words) <= 3 and not _NOT_THINGS & set(words) and not _PARTS.search(
      words[-1]) and re.fullmatch(
      '[a-z]{2,}s', words[-1]) and all(w.isalpha() for w in words):
    return '?'
  return None


def _product(words: list[str]) -> str:
  """Returns the one spelling of a product of units; '' if it is none."""
  known = [_UNITS.get(w) or _UNITS.get(w.removesuffix('s'), '') for w in words]
  return '*'.join(known) if all(known) else ''
