r"""Tokens of mathematical answers: one spelling of what LaTeX writes in many.

Fonts, sizes, spaces, delimiters and Unicode signs disappear here, so that the
grammar (`grammar.py`) has one token for each sign that changes a value. Nothing
is computed.
"""

import functools
import re
from typing import NamedTuple
import unicodedata


class Token(NamedTuple):
  """A sign, number, run of letters or piece of text.

  Attributes:
    kind: 'number', 'letters' (a run in math), 'text' (words of \\text), 'mark'
      (a style's letter that may be a unit, such as \\mathrm{m}), 'sign'.
    text: its spelling; of a command with the backslash.
    spaced: whether white space stood before it.
    bold: whether a letter is set in bold face, as vectors are.
  """
  kind: str
  text: str
  spaced: bool = False
  bold: bool = False


_UNICODE = {
    '−': '-', '–': '-', '—': '-', '﹣': '-', '×': r'\times ', '·': r'\cdot ',
    '⋅': r'\cdot ', '∙': r'\cdot ', '•': r'\cdot ', '÷': '/', '∕': '/',
    '⁄': '/', '≤': r'\le ', '⩽': r'\le ', '≦': r'\le ', '≥': r'\ge ',
    '⩾': r'\ge ', '≧': r'\ge ', '≠': r'\ne ', '≈': r'\approx ',
    '≡': r'\equiv ', '∞': r'\infty ', '∅': r'\emptyset ', '∪': r'\cup ',
    '∩': r'\cap ', '∈': r'\in ', '∉': r'\notin ', '⊂': r'\subset ',
    '⊆': r'\subseteq ', '∖': r'\setminus ', '°': r'^\circ ', 'º': r'^\circ ',
    '˚': r'^\circ ', '±': r'\pm ', '∓': r'\mp ', '…': r'\ldots ',
    '⋯': r'\ldots ', '′': "'", '’': "'", '″': "''", '∠': r'\angle ',
    '△': r'\triangle ', '∂': r'\partial ', '∇': r'\nabla ', '∑': r'\sum ',
    '∏': r'\prod ', '∫': r'\int ', '→': r'\to ', '⇒': r'\to ', '∼': r'\sim ',
    '⊥': r'\perp ', '∥': r'\parallel ', '⟨': '(', '⟩': ')', '〈': '(',
    '〉': ')', '⌊': r'\lfloor ', '⌋': r'\rfloor ', '⌈': r'\lceil ',
    '⌉': r'\rceil ', 'ℝ': r'\mathbb{R}', 'ℤ': r'\mathbb{Z}',
    'ℕ': r'\mathbb{N}', 'ℚ': r'\mathbb{Q}', 'ℂ': r'\mathbb{C}',
    '½': r'\frac{1}{2}', '¼': r'\frac{1}{4}', '¾': r'\frac{3}{4}',
    '⅓': r'\frac{1}{3}', '⅔': r'\frac{2}{3}', '⅕': r'\frac{1}{5}',
    '⅖': r'\frac{2}{5}', '⅗': r'\frac{3}{5}', '⅘': r'\frac{4}{5}',
    '⅙': r'\frac{1}{6}', '⅚': r'\frac{5}{6}', '⅛': r'\frac{1}{8}',
    '⅜': r'\frac{3}{8}', '⅝': r'\frac{5}{8}', '⅞': r'\frac{7}{8}',
    '、': ',', '。': '.', '，': ',', '\u3000': ' ', '“': '"', '”': '"',
    '∣': '|', '｜': '|', '‖': r'\|', '∶': ':',
    **{letter: f'\\{name} ' for letter, name in zip(
        'αβγδεϵζηθικλμνξπρσςτυφϕχψωΓΔΘΛΞΠΣΦΨΩ',
        'alpha beta gamma delta epsilon epsilon zeta eta theta iota kappa '
        'lambda mu nu xi pi rho sigma sigma tau upsilon phi phi chi psi omega '
        'Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega'.split())},
}
_SYMBOLS = re.compile('|'.join(map(re.escape, _UNICODE)))
_ROOTS = re.compile(r'(√|∛|∜)\s*(\(|\{)?')
_UNDER_ROOT = re.compile(r'[0-9]+(?:\.[0-9]+)?|[a-zA-Z]|\\pi')
_DEGREES_OF_ROOTS = {'√': '', '∛': '[3]', '∜': '[4]'}
_SCRIPTS = re.compile('([⁻⁺⁰¹²³⁴-⁹ⁿ]+)|([₀-₉ₙ]+)')
_DIGITS = str.maketrans('⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ₀₁₂₃₄₅₆₇₈₉ₙ',
                        '-+0123456789n' '0123456789n')
_WIDE = re.compile('[\uff01-\uff5e\U0001d400-\U0001d7ff]+')

_DELIMITERS = [(r'\(', r'\)'), (r'\[', r'\]'), ('**', '**'), ('"', '"'),
               ('`', '`'), ("''", "''"), ('*', '*')]
# Dollars of markup: between two formulas, around one, and one left alone. What
# stands before a number, or behind it, is money.
_AND = r'(?:,|;|\b(?:and|or)\b|\\text(?:rm)?\s*\{\s*(?:and|or)\s*\})'
_DOLLARS = re.compile(
    rf'(?<![\\$])(?<!\$\s)(\$\$?)(?:(\s*{_AND}(?:\s|{_AND})*)\1(?!\$)|'
    r'(?=[^$]*[\w\\])((?:\\.|[^$\\])+)\1(?!\s*[-+$\d.\\(]))|'
    r'(?<=[-+*/=<>])\s*\$\s+\$', re.IGNORECASE | re.DOTALL)
_LEFT_DOLLAR = re.compile(
    r'^\$(?!\s*[-+]?[\d.\\])(?=[^$]*$)|^([^$]*[^$\d\s\\])\s*\$[.,;\s]*$')
_GROUPED = re.compile(r'(?<![0-9,.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])')

_SPACE_AROUND = re.compile(
    r'^(?:\\[,;:! ]|~|\s)+|(?:(?<!\\)\\[,;:! ]|~|\s)+$')

# Several spellings of one sign.
_SAME = {
    r'\dfrac': r'\frac', r'\tfrac': r'\frac', r'\cfrac': r'\frac',
    r'\dbinom': r'\binom', r'\tbinom': r'\binom', r'\leq': r'\le',
    r'\leqslant': r'\le', r'\leqq': r'\le', r'\geq': r'\ge',
    r'\geqslant': r'\ge', r'\geqq': r'\ge', r'\neq': r'\ne', r'\lt': '<',
    r'\gt': '>', r'\lbrace': r'\{', r'\rbrace': r'\}', r'\langle': '(',
    r'\rangle': ')', r'\lparen': '(', r'\rparen': ')', r'\lbrack': '[',
    r'\rbrack': ']', r'\varnothing': r'\emptyset', r'\colon': ':',
    r'\lvert': '|', r'\rvert': '|', r'\vert': '|',
    r'\Vert': r'\|', r'\lVert': r'\|', r'\rVert': r'\|', r'\ast': '*',
    r'\prime': "'", r'\simeq': r'\approx',
    r'\thickapprox': r'\approx', r'\div': '/',
    r'\dots': r'\ldots', r'\cdots': r'\ldots', r'\dotsc': r'\ldots',
    r'\dotsb': r'\ldots', r'\vdots': r'\ldots', r'\ddots': r'\ldots',
    r'\backslash': r'\setminus', r'\smallsetminus': r'\setminus',
    r'\varphi': r'\phi', r'\varepsilon': r'\epsilon', r'\vartheta': r'\theta',
    r'\imath': 'i', r'\measuredangle': r'\angle',
    r'\R': r'\mathbb{R}', r'\Z': r'\mathbb{Z}',
    r'\N': r'\mathbb{N}', r'\Q': r'\mathbb{Q}', r'\C': r'\mathbb{C}',
    r'\land': r'\wedge', r'\lor': r'\vee', r'\widehat': r'\hat',
    r'\overline': r'\bar', r'\overrightarrow': r'\vec',
    r'\widetilde': r'\tilde',
    r'\arctg': r'\arctan', r'\tg': r'\tan', r'\ctg': r'\cot',
    r'\cosec': r'\csc', r'\rightarrow': r'\to', r'\Rightarrow': r'\to',
    r'\implies': r'\to', r'\longrightarrow': r'\to', r'\pounds': '£',
    r'\euro': '€', r'\%': '%', '<=': r'\le', '>=': r'\ge', '**': '^',
    r'\bmod': r'\mod', r'\exponentialE': 'e', r'\triangleq': '=',
    r'\coloneqq': '=', ':=': '=', '==': '=',
}
_SKIPPED = frozenset(
    r'\displaystyle \textstyle \scriptstyle \limits \nolimits \left \right '
    r'\middle \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr '
    r'\Biggl \Biggr \bigm \Bigm \quad \qquad \, \; \: \! \  \> \thinspace '
    r'\boxed \fbox \ensuremath \mathstrut \strut \null \bf \rm \it \sf '
    r'\mathrel \mathop \mathbin \hfill \medspace \thickspace \enspace '
    r'\normalsize \large \Large \small \displaylines \centering \relax '
    r'\nonumber \notag \allowbreak \- \/'.split()) | {'\\ '}
_WITH_ARGUMENT = frozenset(
    r'\color \textcolor \hspace \vspace \phantom \hphantom \vphantom \tag '
    r'\label \mspace \hskip'.split())
# Fonts whose content is mathematics, and those whose content may be words.
_FONTS = frozenset(
    r'\mathbf \mathit \boldsymbol \bm \pmb \mathnormal \textit \textbf \textsf '
    r'\emph \underline \mathsf \textsl \mathtt \texttt'.split())
_TEXTS = frozenset(
    r'\text \textrm \textnormal \textup \mathrm \mbox \hbox \operatorname '
    r'\operatorname* \mathop \textsc'.split())
_ALPHABETS = frozenset(r'\mathbb \mathcal \mathscr \mathfrak'.split())

FUNCTIONS = frozenset(
    'sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh '
    'cosh tanh coth sech csch arcsinh arccosh arctanh ln log lg exp gcd lcm '
    'max min det deg arg Re Im sgn'.split())
_GREEK = frozenset(
    'alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi '
    'rho sigma tau upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi '
    'Sigma Upsilon Phi Psi Omega ell hbar'.split())
NAMES = frozenset('\\' + name for name in _GREEK)
# What these are without a backslash, as a run of letters of their own.
_BARE = {
    **{name: '\\' + name for name in FUNCTIONS - {
        'Re', 'Im', 'deg', 'arg', 'det', 'sec', 'min', 'max', 'lg'}},
    'pi': r'\pi', 'infinity': r'\infty', 'infty': r'\infty', 'inf': r'\infty',
    'oo': r'\infty', 'sqrt': r'\sqrt', 'theta': r'\theta',
    'alpha': r'\alpha', 'beta': r'\beta', 'gamma': r'\gamma',
    'lambda': r'\lambda', 'omega': r'\omega', 'asin': r'\arcsin',
    'acos': r'\arccos', 'atan': r'\arctan', 'cbrt': r'\sqrt[3]'}

_TOKEN = re.compile(r'''
    (?P<number>[0-9]{1,3}(?:\.[0-9]{3}){2,}(?![0-9.])|
      (?:[0-9]{1,3}(?:(?:,\\!|\{,\}|\\[,;:!]|\\\ |~)[0-9]{3})+
      (?![0-9])|[0-9]+)(?:\.(?![0-9.]*\.)[0-9]*)?|\.[0-9]+) |
    (?P<power>[eE][-+]?[0-9]+(?![0-9A-Za-z_.])) |
    (?P<letters>[a-zA-Z]+) | (?P<command>\\(?:[a-zA-Z]+\*?|.)) |
    (?P<space>[\s~]+) | (?P<sign><=|>=|\*\*|:=|==|.)''',
                    re.VERBOSE | re.DOTALL)
_LINE = re.compile(r'\\\\\s*(?:\[\s*-?[0-9.]+\s*(?:pt|e[mx]|[cm]m)\s*\])?')
_MATH_WORDS = re.compile(r'[a-zA-Z]{2,}')


class Unread(ValueError):
  """Raised for a text that the grammar does not understand whole."""


def plain_signs(text: str) -> str:
  """Replaces Unicode signs by LaTeX or ASCII, full-width ones too."""
  text = _WIDE.sub(lambda found: unicodedata.normalize('NFKC', found[0]), text)
  if text.isascii():
    return text
  text = _ROOTS.sub(_root, text)
  text = _SYMBOLS.sub(lambda found: _UNICODE[found[0]], text)
  text = _SCRIPTS.sub(
      lambda found: ('^{' if found[1] else '_{')
      + found[0].translate(_DIGITS) + '}', text)
  # Other kinds of white space.
  return re.sub(r'[^\S\n ]', ' ', text)


def _root(found: re.Match[str]) -> str:
  """Writes the sign of a root as a command and its argument as a group."""
  command = r'\sqrt' + _DEGREES_OF_ROOTS[found[1]]
  if found[2]:
    return command + found[2]
  under = _UNDER_ROOT.match(found.string, found.end())
  # The argument stays where it is: \sqrt takes the next number or letter.
  return command + ('' if under else ' ')


def trimmed(text: str) -> str:
  """Removes delimiters around an answer and punctuation behind it."""
  text = plain_signs(text).strip()
  for _ in range(8):
    before = text
    if '$' in text:
      text = _DOLLARS.sub(r' \2\3 ', text)
      text = _LEFT_DOLLAR.sub(r'\1', text).strip()
    for begin, end in _DELIMITERS:
      size = len(begin) + len(end)
      inside = text[len(begin):-len(end)]
      is_around = text.startswith(begin) and text.endswith(end)
      if is_around and len(text) > size and begin not in inside:
        text = inside.strip()
    if not text.endswith('..'):
      text = re.sub(r'(?<!\\)(?:\\\\|[.;,])$', '', text)
    text = _SPACE_AROUND.sub('', text).strip()
    if text.startswith('{') and _closes(text):
      text = text[1:-1].strip()
    if text == before:
      break
  return text


def _closes(text: str) -> bool:
  """Tells whether the first brace closes at the end."""
  try:
    return argument(text, 0)[1] == len(text)
  except Unread:
    return False


def comma_free(text: str) -> str:
  """Removes commas between groups of three digits where they can be no list.

  They can be one if the text has another comma or a bracket: '(1,234)'.
  """
  if ',' not in text or re.search(r'[(\[]|\\\{|\\lbrace|\\langle', text):
    return text
  found = _GROUPED.sub(lambda found: found[0].replace(',', ''), text)
  return text if ',' in found else found


@functools.lru_cache(1 << 14)
def tokens(text: str) -> tuple[Token, ...]:
  """Splits an answer, `trimmed` or not, into tokens.

  Raises:
    Unread: a brace or an argument has no end.
  """
  found = _tokens(comma_free(trimmed(text)))
  found = _plain_primes(found)
  for i in range(len(found) - 2, -1, -1):
    if found[i].text == r'\not' and found[i + 1].text in ('=', r'\in'):
      found[i:i + 2] = [Token('sign', {'=': r'\ne'}.get(
          found[i + 1].text, r'\notin'))]
  for i, (last, token, following) in enumerate(
      zip(found, found[1:], found[2:]), 1):
    if token.text == 'x' and last.kind == following.kind == 'number' and (
        token.spaced or following.text == '10'):
      found[i] = Token('sign', r'\times')  # 4.5 x 10^3
  return tuple(found)


def _plain_primes(found: list[Token]) -> list[Token]:
  r"""Writes y^{\prime} as y'."""
  texts = [token.text for token in found]
  kept, i = [], 0
  while i < len(found):
    if texts[i] == '^' and texts[i + 1:i + 2] == ["'"]:
      i += 1
      continue
    if texts[i:i + 2] == ['^', '{'] and texts[i + 2:i + 3] == ["'"]:
      end = i + 2
      while texts[end:end + 1] == ["'"]:
        end += 1
      if texts[end:end + 1] == ['}']:
        kept += found[i + 2:end]
        i = end + 1
        continue
    kept.append(found[i])
    i += 1
  return kept


def _tokens(text: str) -> list[Token]:
  found, spaced, at = [], False, 0
  while at < len(text):
    if (line := _LINE.match(text, at)) and text.startswith('\\\\', at):
      found.append(Token('sign', r'\\', spaced))
      at, spaced = line.end(), False
      continue
    match = _TOKEN.match(text, at)
    at, kind, piece = match.end(), match.lastgroup, match[0]
    if kind == 'space':
      spaced = True
      continue
    if kind == 'power':
      if not (found and found[-1].kind == 'number' and not spaced):
        kind, piece = 'letters', piece[0]
        at = match.start() + 1
        run = re.compile('[a-zA-Z]+').match(text, match.start())
        piece, at = run[0], run.end()
      else:
        found[-1] = Token('number', found[-1].text + piece, found[-1].spaced)
        continue
    if kind == 'command':
      at = _command(text, at, piece, spaced, found)
    elif kind == 'number':
      digits = re.sub(r'[^0-9.]', '', piece)
      if digits.count('.') > 1:  # 1.234.567
        digits = digits.replace('.', '')
      found.append(Token('number', digits, spaced))
    elif kind == 'letters':
      found += _letters(piece, spaced)
    else:
      found.append(Token('sign', _SAME.get(piece, piece), spaced))
    spaced = False
  return found


def _letters(run: str, spaced: bool) -> list[Token]:
  """Returns the tokens of a run of letters without a backslash."""
  if run in _BARE:
    return [Token(t.kind, t.text, spaced) for t in _tokens(_BARE[run])]
  if run.lower() in ('and', 'or'):
    return [Token('sign', run.lower(), spaced)]
  return [Token('letters', run, spaced)]


def _command(
    text: str, at: int, piece: str, spaced: bool, found: list[Token]) -> int:
  """Adds the tokens of a command to `found`; returns where the text goes on."""
  piece = piece if piece in _TEXTS else piece.rstrip('*') or piece
  if piece == r'\degree':
    found += [Token('sign', '^', spaced), Token('sign', r'\circ')]
    return at
  piece = _SAME.get(piece, piece)
  if piece in _SKIPPED:
    if piece in (r'\left', r'\right', r'\middle') and text[at:at + 1] == '.':
      at += 1
    return at
  if piece in _WITH_ARGUMENT:
    return argument(text, at)[1]
  if piece in _FONTS:
    inside, at = argument(text, at)
    found += _styled(inside, spaced, False)
  elif piece in _TEXTS:
    inside, at = argument(text, at)
    found += _styled(inside, spaced, True, piece.startswith(r'\operatorname'))
  elif piece in _ALPHABETS:
    inside, at = argument(text, at)
    found.append(Token('sign', f'{piece}{{{inside.strip()}}}', spaced))
  elif piece == r'\begin' or piece == r'\end':
    inside, at = argument(text, at)
    name = inside.strip().rstrip('*')
    if piece == r'\begin' and name == 'array':
      at = argument(text, at)[1]
    found.append(Token('sign', f'{piece}{{{name}}}', spaced))
  elif piece.startswith('\\') or len(piece) > 1:
    found.append(Token('sign', piece, spaced))
  else:
    kind = 'letters' if piece.isalpha() else 'sign'
    found.append(Token(kind, piece, spaced))
  return at


def _styled(
    inside: str, spaced: bool, is_text: bool, is_name: bool = False
) -> list[Token]:
  """Returns the tokens of the content of a font or of \text."""
  content = re.sub(r'\\[,;:! ]|~|\\\\', ' ', inside).strip()
  content = re.sub(r'^\$([^$]*)\$$', r'\1', content)
  name = content.replace(' ', '')
  if name in FUNCTIONS and (is_name or name not in ('min', 'sec', 'deg')):
    return [Token('sign', '\\' + name, spaced)]
  if content.strip(', ').lower() in ('and', 'or', ''):
    word = content.strip(', ').lower()
    sign = word or (',' if ',' in content else '')
    return [Token('sign', sign, spaced)] if sign else []
  if re.fullmatch('[a-zA-Z]', content):
    kind = 'mark' if is_text else 'letters'
    return [Token(kind, content, spaced, bold=not is_text)]
  if is_text and (amount := re.fullmatch(
      r'(-?[0-9][0-9.,]*) +([a-zA-Z][a-zA-Z ]*)', content)):
    return [*_tokens(comma_free(amount[1])), Token('text', amount[2])]
  if is_text and re.fullmatch(r'degrees?', content):
    return [Token('sign', '^', spaced), Token('sign', r'\circ')]
  if _MATH_WORDS.search(re.sub(r'\\[a-zA-Z]+', '', content)) and (
      is_text or not re.search(r'[\\_^={}]', content)):
    if not is_text and re.fullmatch('[a-zA-Z]{2,3}', content):
      return [Token('letters', content, spaced)]
    return [Token('text', re.sub(r'\s+', ' ', content), spaced)]
  parts = _tokens(content)
  if is_text:
    parts = [part._replace(kind='mark') if part.kind == 'letters' else part
             for part in parts]
  return [parts[0]._replace(spaced=spaced or parts[0].spaced),
          *parts[1:]] if parts else []


def argument(text: str, at: int) -> tuple[str, int]:
  """Returns the argument of a command that ends at `at`, and where it ends.

  Raises:
    Unread: it is missing or has no end.
  """
  while at < len(text) and text[at].isspace():
    at += 1
  if at == len(text):
    raise Unread('no argument')
  if text[at] != '{':
    one = re.compile(r'\\(?:[a-zA-Z]+|.)|.', re.DOTALL).match(text, at)
    return (one[0], one.end()) if one else ('', at)
  depth, start = 0, at
  for brace in re.compile(r'\\.|[{}]', re.DOTALL).finditer(text, at):
    depth += (brace[0] == '{') - (brace[0] == '}')
    if depth == 0:
      return text[start + 1:brace.start()], brace.end()
  raise Unread('a brace has no end')


def spelled(text: str) -> str:
  """Returns the tokens as one text: equal for many spellings of an answer.

  Braces around one token count for nothing. White space counts only between
  numbers and between letters.
  """
  try:
    found = list(tokens(text))
  except (Unread, RecursionError):
    return re.sub(r'\s+', ' ', trimmed(text))
  words, i = [], 0
  while i < len(found):
    if (found[i].text == '{' and i + 2 < len(found)
        and found[i + 2].text == '}' and found[i + 1].kind != 'text'
        and (found[i + 1].kind != 'letters' or len(found[i + 1].text) == 1)):
      found[i:i + 3] = [found[i + 1]._replace(spaced=found[i].spaced)]
      if i and found[i - 1].text == '{':
        i -= 1
        continue
    i += 1
  for last, token in zip([None, *found], found):
    if last and last.kind != 'sign' and token.kind != 'sign' and (
        token.spaced or last.kind == token.kind):
      words.append(' ')
    elif last and last.text[-1:].isalpha() and last.text.startswith('\\') and (
        token.text[:1].isalpha()):
      words.append(' ')
    words.append(token.text)
  return ''.join(words)
