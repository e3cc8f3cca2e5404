r"""Tokens of mathematical answers: one spelling for the many of LaTeX.

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


# Each entry: a sign, and its characters.
_CHARACTERS = r'''
- −–—﹣  \times ×  \cdot ·⋅∙•  / ÷∕⁄  \le ≤⩽≦  \ge ≥⩾≧  \ne ≠  \approx ≈
\equiv ≡  \infty ∞  \emptyset ∅  \cup ∪  \cap ∩  \in ∈  \notin ∉  \subset ⊂
\subseteq ⊆  \setminus ∖  ^\circ °º˚  \pm ±  \mp ∓  \ldots …⋯  ' ′’  '' ″
\angle ∠  \triangle △  \partial ∂  \nabla ∇  \sum ∑  \prod ∏  \int ∫  \to →⇒
\sim ∼  \perp ⊥  \parallel ∥  \AA ÅÅ  \mu µ  \sqrt √
\sqrt[3] ∛  \sqrt[4] ∜  ( ⟨〈  ) ⟩〉  \lfloor ⌊  \rfloor ⌋  \lceil ⌈
\rceil ⌉  \mathbb{R} ℝ  \mathbb{Z} ℤ  \mathbb{N} ℕ  \mathbb{Q} ℚ  \mathbb{C} ℂ
\frac{1}{2} ½  \frac{1}{4} ¼  \frac{3}{4} ¾  \frac{1}{3} ⅓  \frac{2}{3} ⅔
\frac{1}{5} ⅕  \frac{2}{5} ⅖  \frac{3}{5} ⅗  \frac{4}{5} ⅘  \frac{1}{6} ⅙
\frac{5}{6} ⅚  \frac{1}{8} ⅛  \frac{3}{8} ⅜  \frac{5}{8} ⅝  \frac{7}{8} ⅞
, 、，  . 。  " “”  | ∣｜  \| ‖  : ∶  \alpha α  \beta β  \gamma γ  \delta δ
\epsilon εϵ  \zeta ζ  \eta η  \theta θ  \iota ι  \kappa κ  \lambda λ  \mu μ
\nu ν  \xi ξ  \pi π  \rho ρ  \sigma σς  \tau τ  \upsilon υ  \phi φϕ  \chi χ
\psi ψ  \omega ω  \Gamma Γ  \Delta Δ  \Theta Θ  \Lambda Λ  \Xi Ξ  \Pi Π
\Sigma Σ  \Phi Φ  \Psi Ψ  \Omega Ω
'''
_UNICODE = {
    character: sign + ' ' * (sign[0] == '\\')
    for sign, characters in map(
        str.split, re.split(r'  |\n', _CHARACTERS.strip()))
    for character in characters}
_SYMBOLS = re.compile('|'.join(map(re.escape, _UNICODE)))
_SCRIPTS = re.compile('([⁻⁺⁰¹²³⁴-⁹ⁿ]+)|([₀-₉ₙ]+)')
_INVISIBLE = re.compile('[\u200b-\u200f\u2060\ufeff]')
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
_GROUPED = re.compile(r'(?<![0-9,.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[^ ])')

_SPACE_AROUND = re.compile(
    r'^(?:\\[,;:! ]|~|\s)+|(?:(?<!\\)\\[,;:! ]|~|\s)+$')

# What is said in words or by marks, and its spelling in signs.
_TEXT, _ORDINAL = r'(?:\\text\s*\{\s*)?', r'(?:st|nd|rd|th)'
_SAID = [(re.compile(pattern), spelling) for pattern, spelling in (
    (r"\^\s*(?:\{\s*((?:(?:\\prime|')\s*)+)\}|(\\prime(?![a-z])|'))", r'\1\2'),
    (r'\\degree(?![a-z])', r'^\\circ '), (r'\\not\s*=', r'\\ne '),
    (r'\\not\s*\\in(?![a-z])', r'\\notin '),
    # 4.5 x 10^3
    (r'(?<=[0-9])(?: x ?| ?x ?(?=10(?![0-9])))(?=[0-9])', r'\\times '),
    # 12^{\text{th}}, 12th; 2^{nd} is a power.
    (rf'([0-9])\s*\^?\s*(?:\{{\s*\\[a-z]+\s*\{{\s*{_ORDINAL}\s*\}}\s*\}}|'
     rf'\\[a-z]+\s*\{{\s*{_ORDINAL}\s*\}}|\{{\s*th\s*\}}|'
     rf'(?<![\^ ]){_ORDINAL}(?![a-zA-Z]))', r'\1'),
    (r'\{\s*\}(?=\s*\^)', ''),
    (r'\\mathring\s*(\{\s*)?(?:\\[a-z]+\s*\{\s*A\s*\}|A)(?(1)\s*\})', r'\\AA '),
    (r'(?<![0-9])\.(?=\\(?:overline|bar|dot)(?![a-z]))', '0.'),
    (r'(?<=[0-9])\s*(?:\\text\s*\{\s*to\s*\}|(?<= )to(?= ))\s*(?=[0-9])', ':'),
    # 'where k is an integer', 'for any integer k'
    (rf'{_TEXT}(?:where|for|with)?\s*\}}?\s*(?<![a-z])([a-z])\s*{_TEXT}'
     r'(?:is\s+)?(?:an\s+|any\s+)?integer\s*\}?', r', \1\\in\\mathbb{Z}'),
    (rf'{_TEXT}(?:where|for|with)\s+(?:any\s+|all\s+|some\s+|every\s+)?integers?'
     r'\s*\}?\s*([a-z])(?![a-z])', r', \1\\in\\mathbb{Z}'),
    (rf'(?:\\[,; ]|[\s,])*(?:{_TEXT}for\s+(?:all|any|every)\s+(?:real\s+)?'
     r'(?:numbers?\s+)?\}?|\\forall)\s*[a-z]\s*(?:\\in\s*\\mathbb\s*\{?[RQN]\}?)?$',
     ''),
    (rf'[\s,]*{_TEXT}(?:where|for|with)\s*(?:[a-z ]*constant\s*\}}?\s*[a-zA-Z]|'
     rf'\}}?\s*[a-zA-Z]\s*{_TEXT}[a-z ]*constant\s*\}}?)$', ''),
    (r'^\\text\s*\{[^{}]*(?<![a-z])is:?\s*\}', ''),
    (rf'^{_TEXT}all\s+(?:real\s+|positive\s+)?(?:numbers\s+|integers\s+)?\}}?\s*'
     r'(?=[a-z]\s*(?:\\[gln]e|[<>=]))', ''))]
_SAYS = re.compile(  # a text without any of this says nothing of the above
    r"(?<![\\a-z])[a-z]{2}|\\(?:text|not|prime|forall|math|degree)|'|\.\\|"
    r'[0-9] ?x|\{\}')
_SPACED = re.compile(r'([-+]?[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?)(?![0-9/ ])')

# Each entry: a sign, and its other spellings.
_SAME = {other: sign for sign, *others in map(str.split, r'''
\frac \nicefrac \sfrac \dfrac \tfrac \cfrac ; \binom \dbinom \tbinom ;
\le \leq \leqslant \leqq <= ; \ge \geq \geqslant \geqq >= ; \ne \neq ; < \lt ;
> \gt ; \{ \lbrace ; \} \rbrace ; ( \langle \lparen ; ) \rangle \rparen ;
[ \lbrack ; ] \rbrack ; \emptyset \varnothing ; : \colon ;
| \lvert \rvert \vert ; \| \Vert \lVert \rVert ; * \ast ; ' \prime ;
\approx \simeq \thickapprox ; / \div ;
\ldots \dots \cdots \dotsc \dotsb \vdots \ddots ;
\setminus \backslash \smallsetminus ; \phi \varphi ; \epsilon \varepsilon ;
\theta \vartheta ; i \imath ; \angle \measuredangle ; \mathbb{R} \R ;
\mathbb{Z} \Z ; \mathbb{N} \N ; \mathbb{Q} \Q ; \mathbb{C} \C ; \wedge \land ;
\vee \lor ; \hat \widehat ; \bar \overline ; \vec \overrightarrow ;
\tilde \widetilde ; \arctan \arctg ; \tan \tg ; \cot \ctg ; \csc \cosec ;
\to \rightarrow \Rightarrow \implies \longrightarrow ; £ \pounds ; € \euro ;
% \% ; ^ ** ; \mod \bmod ; e \exponentialE ; = \triangleq \coloneqq := ==
'''.split(' ;')) for other in others}
_SKIPPED = frozenset(
    r'\displaystyle \textstyle \scriptstyle \limits \nolimits \left \right '
    r'\middle \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr '
    r'\Biggl \Biggr \bigm \Bigm \quad \qquad \, \; \: \! \  \> \thinspace '
    r'\boxed \fbox \ensuremath \mathstrut \strut \null \bf \rm \it \sf '
    r'\mathrel \mathop \mathbin \hfill \medspace \thickspace \enspace '
    r'\normalsize \large \Large \small \displaylines \centering \relax '
    r'\nonumber \notag \allowbreak \- \/'.split())
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
    'max min deg arg Re Im sgn cis'.split())
NAMES = frozenset(
    r'\alpha \beta \gamma \delta \epsilon \zeta \eta \theta \iota \kappa '
    r'\lambda \mu \nu \xi \pi \rho \sigma \tau \upsilon \phi \chi \psi \omega '
    r'\Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Upsilon \Phi \Psi \Omega '
    r'\ell \hbar'.split())
# What these are without a backslash, as a run of letters of their own.
_BARE = {
    **{name: '\\' + name for name in FUNCTIONS - {
        'Re', 'Im', 'deg', 'arg', 'sec', 'min', 'max', 'lg'} | {
            *'pi infty sqrt theta alpha beta gamma lambda omega'.split()}},
    'infinity': r'\infty', 'inf': r'\infty', 'oo': r'\infty',
    'asin': r'\arcsin', 'acos': r'\arccos', 'atan': r'\arctan',
    'cbrt': r'\sqrt[3]'}

_TOKEN = re.compile(r'''
    (?P<number>[0-9]{1,3}(?:\.[0-9]{3}){2,}(?![0-9.])|
      (?:[0-9]{1,3}(?:(?:,\\!|\{,\}|\\[,;:!]|\\\ |~)[0-9]{3})+
      (?![0-9])|[0-9]+)(?:\.(?![0-9.]*\.)[0-9]*)?
      (?:[eE][-+]?[0-9]+(?![0-9A-Za-z_.]))?|
      \.[0-9]+(?:[eE][-+]?[0-9]+(?![0-9A-Za-z_.]))?) |
    (?P<line>\\\\\s*(?:\[\s*-?[0-9.]+\s*(?:pt|e[mx]|[cm]m)\s*\])?) |
    (?P<letters>[a-zA-Z]+) | (?P<command>\\(?:[a-zA-Z]+\*?|.)) |
    (?P<space>[\s~]+) | (?P<sign><=|>=|\*\*|:=|==|.)''',
                    re.VERBOSE | re.DOTALL)


class Unread(ValueError):
  """Raised for a text that the grammar does not understand whole."""


def plain_signs(text: str) -> str:
  """Replaces Unicode signs by LaTeX or ASCII, full-width ones too."""
  text = _WIDE.sub(lambda found: unicodedata.normalize('NFKC', found[0]), text)
  if text.isascii():
    return text
  text = _INVISIBLE.sub('', text)
  text = re.sub(
      r'(?<=[0-9])( ?)[µμ]([msgLFCAVHTWJ])$', r'\1\\mu\\text{\2}', text)
  text = _SCRIPTS.sub(
      lambda found: ('^{' if found[1] else '_{')
      + unicodedata.normalize('NFKC', found[0]) + '}', text)
  text = _SYMBOLS.sub(lambda found: _UNICODE[found[0]], text)
  # Other kinds of white space.
  return re.sub(r'[^\S\n ]', ' ', text)


@functools.lru_cache(1 << 14)
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
  if _SAYS.search(text):
    for pattern, spelling in _SAID:
      text = pattern.sub(spelling, text)
  if number := _SPACED.match(text):  # 10 236
    text = number[1].replace(' ', '') + text[number.end():]
  return text


def _closes(text: str) -> bool:
  """Tells whether the first brace closes at the end."""
  try:
    return argument(text, 0)[1] == len(text)
  except Unread:
    return False


def comma_free(text: str) -> str:
  """Removes commas between groups of three digits where they can be no list.

  They can be one if the text has another such comma or a bracket: '(1,234)'.
  """
  if ',' not in text or re.search(r'[(\[]|\\\{|\\lbrace|\\langle', text):
    return text
  found = _GROUPED.sub(lambda found: found[0].replace(',', ''), text)
  return text if re.search(r',(?! )', found) else found


@functools.lru_cache(1 << 14)
def tokens(text: str) -> tuple[Token, ...]:
  """Splits an answer, `trimmed` or not, into tokens.

  Raises:
    Unread: a brace or an argument has no end.
  """
  return tuple(_tokens(comma_free(trimmed(text))))


def _tokens(text: str) -> list[Token]:
  found, spaced, at = [], False, 0
  while at < len(text):
    match = _TOKEN.match(text, at)
    at, kind, piece = match.end(), match.lastgroup, match[0]
    if kind == 'space' or piece == '\\ ':
      spaced = True
      continue
    if kind == 'command':
      at = _command(text, at, piece, spaced, found)
    elif kind == 'number':
      digits = re.sub(r'[^0-9.eE+-]', '', piece)
      if digits.count('.') > 1:  # 1.234.567
        digits = digits.replace('.', '')
      found.append(Token('number', digits, spaced))
    elif kind == 'letters':
      found += _letters(piece, spaced)
    else:
      sign = r'\\' if kind == 'line' else _SAME.get(piece, piece)
      found.append(Token('sign', sign, spaced))
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
    start = at - len(piece)
    inside, at = argument(text, at)
    spaced |= inside[:1] in (' ', '~') or text[start - 2:start] in (
        r'\,', r'\;', r'\:')
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
  else:
    kind = 'letters' if piece.isalpha() else 'sign'  # \imath is i
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
  if (word := content.strip(', ').lower()) in ('and', 'or', ''):
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
  if re.search('[a-zA-Z]{2}', re.sub(r'\\[a-zA-Z]+', '', content)) and (
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
  depth = 0
  for brace in re.compile(r'\\.|[{}]', re.DOTALL).finditer(text, at):
    depth += (brace[0] == '{') - (brace[0] == '}')
    if depth == 0:
      return text[at + 1:brace.start()], brace.end()
  raise Unread('a brace has no end')


def spelled(text: str) -> str:
  """Returns the tokens as one text: equal for many spellings of an answer.

  Braces around one sign, digit or letter count for nothing, and so does white
  space that is not between two numbers.
  """
  try:
    found = list(tokens(text))
  except (Unread, RecursionError):
    return re.sub(r'\s+', ' ', trimmed(text))
  words = []
  for last, token in zip([None, *found], found):
    words.append(' ' * bool(last and last.kind == token.kind == 'number'))
    is_command = token.text[0] == '\\' and token.text[-1].isalpha()
    words.append(token.text + '~' * is_command)  # \in t is no \int
  text, before = ''.join(words), ''
  while text != before:
    before, text = text, re.sub(r'\{(\\[a-zA-Z]+~|[^\\{}0-9])\}', r'\1', text)
    text = re.sub(r'\{([0-9])\}', r' \1 ', text)
  return re.sub(r'(?<![0-9]) | (?![0-9])', '', ' '.join(text.split()))
