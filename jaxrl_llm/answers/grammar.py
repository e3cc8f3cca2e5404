r"""Grammar of the mathematics that answers are written in.

`read` maps a text to a tree if the grammar covers all of it, and raises
`Unread` otherwise: nothing is skipped and nothing is guessed. Where LaTeX
leaves a choice, the grammar takes the one that mathematicians agree on, and
refuses the text where they do not:

  \ln 2x        ln(2x): the argument takes what stands beside it,
  \ln 2\cdot 3  (ln 2)3: up to a sign of multiplication or division,
  2\sin x\cos x and up to another function;  \sin x(1+y) is refused;
  3/4x          (3/4)x;  a/bc is refused;
  x^10          x^{10}, since nobody means x^1 0;  x^2y is x^2 y;
  PV            a product;  A^T is refused, since it may be a transpose;
  g(1+r)        a product if g is a letter elsewhere, else a value of g; g(2)
                is a product only if it is so in the same text;
  \ln(x+1)^2    \ln((x+1)^2);  \ln(x)^2 and \sin(x)^2 are squares of the value;
  C_5^2         the binomial coefficient, of two numbers;
  7!!           the double factorial;  3!^2 is (3!)^2;
  2a_1          a product;  1A_{16}, with digits of that base, a number;
  \log x        the logarithm to a base that is not said: no value equals it
                unless the base cancels.
"""

import fractions
import functools
import re
from typing import Any, NamedTuple

from jaxrl_llm.answers import tokens, units
from jaxrl_llm.answers.tokens import Token, Unread


class Node(NamedTuple):
  """A part of an answer.

  Attributes:
    op: its kind. Expressions: 'number', 'name', 'infinity', '+', '*', '/', '^',
      'neg', 'pm', 'mp', 'root', 'function', 'log', 'call', 'abs', 'norm',
      'floor', 'ceil', '!', '!!', 'degree', 'binomial', 'mod', 'accent'. Wholes:
      'list', 'set', 'tuple' (also of an interval), 'matrix', 'relation',
      'quantity', 'either' and 'both' (relations with 'or' or 'and' between
      them), 'word', 'based', 'cup', 'cap', 'setminus', 'ratio'; 'time' of
      words; and of `shapes`: 'interval', 'values' (of one name), 'pair'.
    args: its parts; nodes, texts or numbers.
  """
  op: str
  args: tuple[Any, ...]


WHOLES = frozenset(
    'list either both set relation quantity word based cup cap setminus '
    'ratio'.split())
RELATIONS = frozenset(
    r'= < > \le \ge \ne \approx \equiv \in \notin \subset \subseteq \supset '
    r'\supseteq \sim \perp \parallel \to \cong \propto \mapsto'.split())
_ACCENTS = frozenset(r'\vec \hat \bar \tilde \dot \ddot'.split())
_FIGURES = (r'\angle', r'\triangle')
# These and environments begin a factor.
_COMMANDS = tokens.NAMES | _ACCENTS | {
    r'\frac', r'\sqrt', r'\binom', r'\infty', *_FIGURES,
    *('\\' + name for name in tokens.FUNCTIONS)}
_CLOSES = {'(': ')', r'\{': r'\}', r'\lfloor': r'\rfloor', r'\lceil': r'\rceil'}
_ENDS = frozenset([')', ']', '}', r'\}', r'\rfloor', r'\rceil'])
_SEPARATORS = frozenset([',', ';', 'and', 'or', r'\wedge', r'\vee'])
_LINKS = frozenset([
    'where', 'for all', 'for', 'with', 'for any', 'for every'])
_AFTER_BRACKETS = RELATIONS | _SEPARATORS | {r'\cup', r'\cap', r'\setminus'}
_AFTER_ELEMENTS = RELATIONS | _SEPARATORS | _ENDS | {'&', '\\\\', ':', '|'}
_MATRICES = frozenset(
    'matrix pmatrix bmatrix Bmatrix smallmatrix array'.split())
_ROWS = frozenset('cases aligned align gathered split dcases'.split())
# What an exponent without braces may begin with, beside letters and numbers.
_EXPONENTS = tokens.NAMES | {r'\frac', r'\sqrt', r'\infty', '('}
# Letters that take any argument in parentheses; others are factors, unless the
# argument is letters and numbers alone: h(a+b) is a product, h(t) is none.
_APPLIED = frozenset([*'fgFG', r'\Gamma', r'\zeta', r'\Phi'])

_BASED = re.compile(
    r'\(?(?P<sign>-?)(?P<digits>[0-9A-Za-z]+(?:\.[0-9]+)?)\)?\s*(?:_\s*\{?\s*\(?'
    r'(?:\\text(?:rm)?\s*\{\s*|\\mathrm\s*\{\s*)?(?P<base>[0-9]+|[a-z]+)'
    r'\s*\}?\)?\s*\}?|'
    r'(?:\\text\s*\{)?\s*\(?base(?![a-z])\s*\}?\s*(?P<said>[0-9]+|[a-z]+)'
    r'\)?\s*\}?)')
_DERIVATIVE = re.compile(
    r'\{ (?:d|\\partial)(?:[^{}]|\{ \w \})* \} \{ (?:d|\\partial) ?[a-zA-Z]'
    r'(?: \^ (?:\d|\{ \d \}))? \}')
_SEGMENTS = re.compile(
    r'[A-Z]{2}\s*\\(?:cdot|times)\s*[A-Z]{2}|'
    r'\\(?:overline|triangle|angle)\s*\{?\s*[A-Z]')
_MIXED = re.compile(
    r'(?:\\frac (?:(\d)(\d)|(?:(\d)|\{ (\d{1,9}) \}) (?:(\d)|\{ (\d{1,9}) \}))|'
    r'(\d{1,9}) / (\d{1,9}))(?! [\^!])(?![^ ])')
_BEFORE_BRACKET = re.compile(r'[fgFG]\s*(?:\\left\s*)?\(')
_PLAIN = r'(?:- )?(?:[0-9.]+|[a-zA-Z]|\\[a-zA-Z]+)'  # in brackets of f(-x, 2)
_PLAIN_ARGUMENT = re.compile(rf'\( {_PLAIN}(?: , {_PLAIN})* \)')
_VALUE = re.compile(
    r'(?:.*=)?[ -]*(?:[\d.e^{}/ ]|(?<=[{^] )-|\\(?:times|cdot|frac|sqrt|pi))*')
# Tokens up to the first letter of a unit that begins with one of these.
_BEFORE_UNIT = {'(': 1, r'\mu': 1, r'\frac': 2}
_LONGEST_UNIT = 20  # tokens
_LONG_RUN = 5  # letters in a row that are a word and no product
_LARGEST = 4000  # digits of a number


def number(value: fractions.Fraction | int) -> Node:
  """Returns the node of a rational number."""
  return Node('number', (fractions.Fraction(value),))


def negated(node: Node) -> Node:
  """Returns minus a node; of a number, the number."""
  if node.op == 'number':
    return number(-node.args[0])
  if node.op == 'quantity':
    return Node('quantity', (negated(node.args[0]), node.args[1]))
  return Node('neg', (node,))


@functools.lru_cache(1 << 13)
def read(
    text: str, *, bare_units: bool = False, any_thing: bool = False,
    factors: frozenset[str] = frozenset()) -> Node:
  """Reads an answer whole.

  Args:
    text: LaTeX or plain text.
    bare_units: whether single letters behind a number are units where they can
      be, as in '6 m/s', and not variables.
    any_thing: whether any words in parentheses behind a number are what is
      counted, as references have them: '13 (money)'.
    factors: see `factors`.

  Raises:
    Unread: the grammar does not cover it.
  """
  text = tokens.trimmed(text)
  text = re.sub(r'^\\text\{([0-9A-Z]+)\}(?=_)', r'\1', text)  # A5 in text
  if based := _based(text):
    return based
  try:
    parser = _Parser(tokens.tokens(text), bare_units, any_thing, factors)
    node = parser.answer()
    parser.end()
  except (RecursionError, ArithmeticError, ValueError) as error:
    raise Unread(str(error)) from error  # too deep, or too long a number
  return node


def factors(text: str, other: str) -> frozenset[str]:
  """Returns how a text, and one that it is compared with, use some letters.

  These are f, g, F and G if they stand as factors in the text, with a + if they
  do in the other one; and 'AB' if two capitals side by side are a segment:
  where it is declared, and in AB \\cdot CD.
  """
  texts = {'': text, '+': other}
  found = {'AB' for each in texts.values() if _SEGMENTS.search(each)}
  if any(_BEFORE_BRACKET.search(each) for each in texts.values()):
    for mark, each in texts.items():
      try:
        every = tokens.tokens(each)
      except Unread:
        continue
      for token, after in zip(every, (*every[1:], Token('end', ''))):
        applied = after.text in ('(', '^', '_', "'") and token.text[-1:] in {
            *'fgFG'}  # fg(x) has no factor f
        if token.kind in ('letters', 'mark') and not applied and len(
            token.text) < _LONG_RUN:
          found |= {c + mark for c in token.text if c in 'fgFG'}
  return frozenset(found)


def _based(text: str) -> Node | None:
  """Returns a number with its base, such as 1A_{16}, or None."""
  if not (found := _BASED.fullmatch(text.replace(r'\left', '').replace(
      r'\right', ''))):
    return None
  base = found['base'] or found['said']
  base = str(units.NUMBERS.get(base, base))
  if not base.isdigit() or len(base) > 2 or not 2 <= int(base) <= 36:
    return None
  digits = found['digits'].replace('.', '')
  letters = re.sub('[0-9]', '', digits)
  # Small letters are variables, but in bases where they are digits as often.
  if letters and not (int(base) == 16 and re.search('[0-9]', digits)
                      or letters.isupper() and len(digits) > 1):
    return None
  if any(int(digit, 36) >= int(base) for digit in digits):
    return None
  digits = found['sign'] + (found['digits'].upper().lstrip('0') or '0')
  return Node('based', (digits, int(base)))


class _Parser:
  """Recursive descent over the tokens of an answer."""

  def __init__(
      self, found: tuple[Token, ...], bare_units: bool, any_thing: bool,
      factors: frozenset[str]):
    self._tokens, self._at = found, 0
    self._bare_units, self._any_thing = bare_units, any_thing
    self._factors = factors
    self._bars = 0  # open | around this place

  # Tokens.

  def _peek(self, ahead: int = 0) -> Token:
    at = self._at + ahead
    return self._tokens[at] if at < len(self._tokens) else Token('end', '')

  def _next(self) -> Token:
    token = self._peek()
    self._at += 1
    return token

  def _is(self, *texts: str) -> bool:
    token = self._peek()
    return token.kind == 'sign' and token.text in texts

  def _take(self, *texts: str) -> str:
    """Takes the next token if it is one of these; returns it or ''."""
    return self._next().text if self._is(*texts) else ''

  def _expect(self, text: str) -> None:
    if not self._take(text):
      raise Unread(f'{text} expected')

  def end(self) -> None:
    """Raises `Unread` if a token is left."""
    if self._peek().kind != 'end':
      raise Unread(f'{self._peek().text} is left')

  def _ends(self, ahead: int = 0) -> bool:
    """Tells whether an element ends before the token so far ahead."""
    token = self._peek(ahead)
    return token.kind == 'end' or token.kind == 'sign' and (
        token.text in _AFTER_ELEMENTS or token.text.startswith(r'\end'))

  # Wholes.

  def answer(self) -> Node:
    """Reads elements up to the end of the text or bracket."""
    items, signs = [self._element()], set()
    while True:
      if self._is('(') and (  # 1/2 (or 0.5), (k \in Z)
          self._peek(1).text == 'or' or self._peek(2).text == r'\in'):
        self._next()
        signs |= {self._take('or')} - {''}
        items.append(self._element())
        self._expect(')')
        continue
      before = self._at
      while self._is(*_SEPARATORS) or self._peek().text.strip(', ') in _LINKS:
        signs.add(self._next().text)  # also ', and'
      if self._at == before or self._ends() and not self._is('|'):
        break  # the end, or a last comma
      items.append(self._element())
    if len(items) == 1:
      return items[0]
    is_relations = all(
        i.op in ('relation', 'either', 'both') for i in items)
    if signs & {r'\wedge', r'\vee'} and not is_relations:
      raise Unread('a logical sign between expressions')
    if signs & {'or', r'\vee'}:
      return Node('either', tuple(items))
    return Node('both' if signs & {'and', r'\wedge'} and is_relations
                else 'list', tuple(items))

  def _element(self) -> Node:
    """Reads a relation or a ratio."""
    self._take(r'\approx')  # '\approx 5' is the value 5
    items = [self._relation()]
    while self._take(':'):
      items.append(self._relation())
    return items[0] if len(items) == 1 else Node(
        'ratio', tuple(map(_scalar, items)))

  def _relation(self) -> Node:
    members, signs = [self._member()], []
    while self._is(*RELATIONS):
      signs.append(self._next().text)
      members.append(self._member())
      if signs[-1] == r'\in' and members[-1].op == 'name' and (
          members[-1].args[0] in 'ZRNQC'):
        members[-1] = Node('name', (rf'\mathbb{{{members[-1].args[0]}}}',))
      if signs[-1] == r'\equiv':
        members[-1] = self._modulus(members[-1])
    if all(m.op != 'mod' for m in members):  # f(x) \equiv 0
      signs = ['=' if sign == r'\equiv' else sign for sign in signs]
    if not signs and members[0].op not in WHOLES:
      residue = self._modulus(members[0])
      if residue is not members[0]:  # 3 (mod 7), without its name
        return Node('relation', (
            (r'\equiv',), (Node('word', ('',)), residue)))
    if not signs:
      return members[0]
    return Node('relation', (tuple(signs), tuple(members)))

  def _modulus(self, node: Node) -> Node:
    """Reads (mod n) behind the last member of a congruence."""
    start = self._at
    has_bracket = self._take('(')
    if self._take(r'\pmod', r'\mod') or (
        self._peek().text == 'mod' and self._next()):
      modulus = self._group() if self._is('{') else self._sum()
      if has_bracket:
        self._expect(')')
      return Node('mod', (node, modulus))
    self._at = start
    return node

  def _member(self) -> Node:
    """Reads words, or an expression or set with its unit."""
    if words := self._words():
      return words
    ahead = 1 if self._is('-', '+') else 0
    money = units.CURRENCIES.get(self._peek(ahead).text)
    sign = self._take('-', '+') if money else ''
    if money:
      self._next()
      node = self._sum()
      unit, scale = self._unit() or (money, 1)
      unit = money if unit in ('', '?', money) else f'{money} {unit}'
    else:
      node = self._stacked(self._union())
      unit, scale = self._unit() or ('', 1)
    if scale != 1:
      node = Node('*', (number(scale), _scalar(node)))
    if node.op == 'degree' and unit in ('C', 'F'):
      node, unit = node.args[0], f'degree_{unit}'
    if sign == '-':
      node = negated(node)
    return Node('quantity', (_scalar(node), unit)) if unit else node

  def _words(self) -> Node | None:
    """Reads an element that consists of words, or returns None."""
    found, ahead = [], 0
    while self._peek(ahead).kind in ('text', 'letters', 'mark'):
      found.append(self._peek(ahead))
      ahead += 1
    token = self._peek(ahead)
    if not found or not (token.kind == 'end' or token.kind == 'sign' and (
        token.text in _SEPARATORS
        or token.text in ('=', ')', r'\}', '&', '\\\\')
        or token.text.startswith(r'\end'))):
      return None
    text = ' '.join(token.text for token in found)
    is_word = any(token.kind == 'text' for token in found) or (
        units.is_word(text))
    if not is_word and all(len(t.text) < _LONG_RUN - 1 for t in found) and (
        sum(len(t.text) > 1 for t in found) < 2):
      return None
    self._at += ahead
    return units.word(text, Node)

  def _unit(self) -> tuple[str, int] | None:
    """Reads a unit or counted thing up to the end of the element."""
    if self._ends():
      return None
    start, parts, depth = self._at, [], 0
    has_bracket = self._is('(')
    while not self._ends() or depth and self._is(')', '}'):
      token = self._next()
      depth += sum((c in '({') - (c in ')}') for c in token.text)
      if len(parts) > _LONGEST_UNIT or (
          token.kind == 'sign' and token.text not in units.SIGNS):
        depth = -1
        break
      parts.append(token)
    # 5^\circ C
    is_degree = len(parts) == 1 and parts[0].text in ('C', 'F') and any(
        token.text == r'\circ' for token in self._tokens[start - 2:start])
    found = None if depth else units.read(
        parts, bare=self._bare_units or is_degree,
        any_thing=self._any_thing and has_bracket)
    if found is None:
      self._at = start
    return found

  def _unit_ahead(self) -> bool:
    """Tells whether the rest of the element is a unit."""
    token, start = self._peek(), self._at
    # What may be a variable too is a unit behind a number, at the end.
    is_symbol = token.text == r'\Omega' or self._peek(1).text == '_'
    if is_symbol and not _VALUE.fullmatch(
        ' '.join(before.text for before in self._tokens[:start])):
      return False
    first = self._peek(_BEFORE_UNIT.get(token.text, 0))
    if first.kind not in ('text', 'letters', 'mark') and not is_symbol and (
        token.text + first.text != r'\frac1'):
      return False
    found, at_end = self._unit(), self._peek().kind == 'end'
    self._at = start
    return found is not None and (at_end or not is_symbol)

  def _union(self) -> Node:
    node = self._sum()
    while self._is(r'\cup', r'\cap', r'\setminus'):
      op = self._next().text[1:]
      if node.op in ('cup', 'cap', 'setminus') and node.op != op:
        raise Unread('unions and intersections without brackets')
      before = node.args if node.op == op != 'setminus' else (node,)
      node = Node(op, (*before, self._sum()))
    return node

  # Expressions.

  def _sum(self) -> Node:
    terms, sign = [], self._sign()
    while sign or not terms:
      term = self._term()
      terms.append(_signed(sign, _scalar(term)) if sign else term)
      sign = self._sign()
    if len(terms) == 1:
      return terms[0]
    return Node('+', tuple(map(_scalar, terms)))

  def _sign(self) -> str:
    """Takes signs; two minus signs are a plus."""
    sign = self._take('+', '-', r'\pm', r'\mp')
    while self._is('+', '-') and sign in ('+', '-'):
      sign = '+' if (self._next().text == '-') == (sign == '-') else '-'
    return sign

  def _term(self) -> Node:
    """Reads factors, with signs of multiplication or without."""
    node = self._factor()
    last = self._tokens[self._at - 1]
    quotient = False  # whether `node` ends with / and a factor
    while True:
      if self._is('*', r'\cdot', r'\times'):
        if self._next().text == r'\times' and (
            self._peek().bold or self._is(r'\vec')):
          raise Unread('a product of vectors')
        node = _product(node, self._signed_factor())
        quotient = False
      elif self._is('/') and self._peek(1).kind != 'text':  # no unit
        self._next()
        low = self._signed_factor()
        # 1/2x is a half of x, but a/bx is the one or the other.
        quotient = node.op != 'number' or low.op != 'number'
        node = _quotient(node, low)
      elif self._starts_factor(last):
        if quotient:
          raise Unread('a factor behind a quotient')
        if last.bold and self._peek().bold:
          raise Unread('a product of matrices or vectors')
        node = _product(node, self._factor())
      else:
        return node
      last = self._tokens[self._at - 1]

  def _signed_factor(self) -> Node:
    """Reads a factor behind a sign of multiplication, as in 2 \\cdot -3."""
    sign = self._take('-', '+')
    node = self._factor()
    return negated(_scalar(node)) if sign == '-' else node

  def _starts_factor(self, last: Token) -> bool:
    """Tells whether the next token continues a product without a sign."""
    token = self._peek()
    if token.kind == 'end' or token.kind == 'text':
      return False
    if token.kind == 'number':
      if last.kind not in ('number', 'letters', 'mark') or last.text == 'i':
        return True
      if last.kind != 'number' and self._tokens[self._at - 2].text == '^' and (
          self._peek(1).text == '^'):
        return True  # 2^n5^n
      raise Unread('two numbers, or a number behind a letter')
    if token.kind in ('letters', 'mark'):
      if len(token.text) >= _LONG_RUN:
        return False
      # GmM has no mM in it.
      return last.kind == 'letters' and not token.spaced or (
          not self._unit_ahead())
    text = token.text
    if text == '[' and (  # [0,1[
        self._peek(1).kind == 'end' or self._peek(1).text in _AFTER_BRACKETS):
      return False
    if text == '[' and last.kind in ('letters', 'mark'):
      raise Unread('a letter before a square bracket')  # E[X]
    if text in ('(', '['):
      return self._peek(1).text not in ('or', r'\mod', r'\pmod', 'mod') and (
          self._peek(2).text != r'\in') and not self._unit_ahead()
    if text in ('|', r'\|'):
      return not self._bars
    return text in (r'\{', '{', r'\lfloor', r'\lceil') or (
        text in _COMMANDS or text.startswith((r'\begin', r'\math'))) and (
            not self._unit_ahead())

  def _factor(self) -> Node:
    """Reads an atom with its powers, factorials, indices and degrees."""
    start = self._at
    node = self._atom()
    if node.op == 'number' and self._at == start + 1:
      if mixed := self._mixed(node):
        return mixed
    while True:
      if self._is('^'):
        node = self._power(node)
      elif op := self._take('!'):
        op += self._take('!')
        if self._is('!'):
          raise Unread('a factorial of a factorial without brackets')
        node = Node(op, (_scalar(node),))
      elif self._take("'"):
        node = self._call(_marked(node, "'"))
      elif self._is('%') and node.op == 'number' and not self._ends(1):
        self._next()  # a part of an expression
        node = Node('/', (node, number(100)))
      else:
        return node

  def _mixed(self, whole: Node) -> Node | None:
    r"""Reads the fraction of a mixed number such as 1\frac{1}{2} or 1 1/2."""
    found = _MIXED.match(self._ahead(8))
    if whole.args[0].denominator != 1 or not found or (
        self._peek().kind == 'number' and not self._peek().spaced):
      return None
    top, low = (text for text in found.groups() if text)
    if not int(low):
      return None
    self._at += found[0].count(' ') + 1
    return number(whole.args[0] + fractions.Fraction(int(top), int(low)))

  def _ahead(self, count: int) -> str:
    """Returns the next tokens as text, with a space between them."""
    return ' '.join(t.text for t in self._tokens[self._at:self._at + count])

  def _power(self, node: Node) -> Node:
    start = self._at
    self._expect('^')
    has_braces = self._ahead(3) == r'{ \circ }'
    if has_braces or self._is(r'\circ'):
      self._at += 3 if has_braces else 1
      return self._minutes(_scalar(node))
    if self._is('{'):
      if node.op == 'name' and (mark := self._bracketed(node.args[0])):
        return self._call(_marked(node, mark))  # the derivative y^{(4)}
      exponent = self._group()
    else:
      exponent = self._exponent()
    if node.op == 'name' and exponent.op == 'number' and (
        chosen := re.fullmatch('C_([0-9]{1,9})', node.args[0])) and (
            0 <= exponent.args[0] <= int(chosen[1])):
      return Node('binomial', (number(int(chosen[1])), exponent))
    if node.op == '^' and self._tokens[start - 1].text != ')':
      raise Unread('a power of a power without brackets')
    if exponent == Node('name', ('T',)) and node != Node('name', ('e',)) and (
        node.op in ('name', 'matrix') or node.op == '*' and all(
            part.op == 'name' and part.args[0].isupper()
            for part in node.args)):
      raise Unread('a transpose')
    return Node('^', (_scalar(node), _scalar(exponent)))

  def _bracketed(self, name: str) -> str:
    """Takes a group that is in parentheses; returns it as text, or ''.

    x^{(10)} is a power, but y^{(4)} a derivative.
    """
    found = re.match(r'\{ (\( [^{}()]+ \)) \}', self._ahead(16))
    if not found or len(name) == 1 and name not in 'fghuyFGHUY' and (
        found[1][2:-2].isdigit()):
      return ''
    self._at += found[0].count(' ') + 1
    return '^' + found[1].replace(' ', '')

  def _minutes(self, node: Node) -> Node:
    """Reads the minutes and seconds of an angle."""
    for marks, part in (("'", 60), ("' '", 3600)):
      found = re.match(rf"(\.?[0-9]\S*) {marks}(?! ')", self._ahead(4))
      if node.op == 'number' and found:
        self._at += found[0].count(' ') + 1
        node = number(node.args[0] + fractions.Fraction(found[1]) / part)
    return Node('degree', (node,))

  def _exponent(self) -> Node:
    """Reads an exponent without braces: one sign, number, letter or bracket."""
    sign = self._take('-', '+')
    token = self._peek()
    if token.kind not in ('number', 'letters', 'mark') and (
        token.text not in _EXPONENTS):
      raise Unread('no exponent')
    node = self._atom()
    return negated(node) if sign == '-' else node


  def _atom(self) -> Node:
    token = self._peek()
    if token.kind == 'number':
      return self._number()
    if token.kind in ('letters', 'mark'):
      return self._letter()
    if token.kind != 'sign':
      raise Unread(f'{token.text} is no expression')
    if self._is('{'):
      return self._group()
    text = self._next().text
    if text in ('(', '[', ']'):  # ]1,2[
      return self._bracket(text)
    if text == r'\{':
      return Node('set', () if self._take(r'\}') else self._items(r'\}'))
    if text in ('|', r'\|'):
      return self._absolute(text)
    if text in (r'\lfloor', r'\lceil'):
      node = _scalar(self._sum())
      self._expect(_CLOSES[text])
      return Node('floor' if text == r'\lfloor' else 'ceil', (node,))
    return self._command(text)

  def _command(self, text: str) -> Node:
    """Reads an expression that begins with a command."""
    if text == r'\frac':
      if _DERIVATIVE.match(self._ahead(16)):
        raise Unread('a derivative')
      return _quotient(self._argument(), self._argument())
    if text == r'\sqrt':
      return self._root()
    if text == r'\binom':
      return Node('binomial', (self._argument(), self._argument()))
    if text == r'\infty':
      return Node('infinity', ())
    if text == r'\emptyset':
      return Node('set', ())
    if text[1:] in tokens.FUNCTIONS and text[0] == '\\':
      return self._function(text[1:])
    if text in _ACCENTS:
      return self._accent(text)
    if text.startswith(r'\begin'):
      return self._environment(text[7:-1])
    if text in _FIGURES:
      return self._figure(text)
    if text in tokens.NAMES or text.startswith(r'\math'):
      return self._indexed(text)
    raise Unread(f'{text} is not known')

  def _number(self) -> Node:
    text = self._next().text
    if self._take('_'):
      if based := _based(f'{text}_{{{self._index()}}}'):
        return based
      raise Unread('a number with an index')
    mantissa, _, power = text.lower().partition('e')
    if len(power) > 8 or len(mantissa) + abs(int(power or 0)) > _LARGEST:
      raise Unread('a long number')
    value = fractions.Fraction(text)
    if self._is(r'\bar', r'\dot') and '.' in mantissa and not power:
      self._next()
      again = self._index()
      if not again.isdigit():
        raise Unread('a bar over no digits')
      places = len(mantissa.partition('.')[2])
      value += fractions.Fraction(
          int(again), (10 ** len(again) - 1) * 10 ** places)
    return number(value)

  def _letter(self) -> Node:
    """Reads one letter of a run, with its index or argument."""
    token = self._next()
    if len(token.text) >= _LONG_RUN:
      raise Unread(f'{token.text} is a word')
    if 'AB' in self._factors and re.fullmatch('[A-Z]{2}', token.text):
      return self._indexed(''.join(sorted(token.text)))
    following = self._peek()
    if len(token.text) > 1 and len(following.text) > 1 and (
        following.kind in ('letters', 'text') and following.spaced):
      raise Unread('words')
    self._at -= 1
    return self._indexed(self._first().text)

  def _first(self) -> Token:
    """Takes the first character of a number or a run of letters."""
    token = self._next()
    if len(token.text) > 1 and token.kind != 'sign':
      rest = Token(token.kind, token.text[1:])
      self._tokens = (*self._tokens[:self._at], rest, *self._tokens[self._at:])
      return token._replace(text=token.text[0])
    return token

  def _indexed(self, name: str) -> Node:
    """Reads the index of a name, and the argument if it is a function."""
    if self._take('_'):
      name += '_' + self._index()
    return self._call(Node('name', (name,)))

  def _index(self) -> str:
    """Returns an index as text without its braces."""
    if not self._is('{'):
      token = self._next()
      if token.kind == 'end' or token.text in _ENDS:
        raise Unread('no index')
      return token.text.lstrip('\\')
    depth, parts = 0, []
    while True:
      token = self._next()
      if token.kind == 'end':
        raise Unread('an index has no end')
      depth += (token.text == '{') - (token.text == '}')
      if depth == 0:
        return ''.join(parts[1:]).lstrip('\\')
      parts.append(token.text)

  def _call(self, node: Node) -> Node:
    """Reads the argument of a name, as in f(x) or P(2), if it has one."""
    if not self._is('(') or self._peek().spaced:
      return node
    name = node.args[0]
    letter = name.rstrip("'").partition('_')[0]
    is_plain = _PLAIN_ARGUMENT.match(self._ahead(24))
    if letter in self._factors or not is_plain and (
        letter + '+' in self._factors or letter not in _APPLIED) or (
            letter in ('e', 'i', r'\pi') and "'" not in name):
      return node
    self._next()
    return Node('call', (name, self._items(')')))

  def _group(self) -> Node:
    """Reads a group in braces."""
    self._expect('{')
    bars, self._bars = self._bars, 0
    node = self._stacked(self._sum())
    self._expect('}')
    self._bars = bars
    return node

  def _stacked(self, node: Node) -> Node:
    """Reads the lower part, as in n \\choose k and 3 \\over 4."""
    if self._take(r'\choose'):
      return Node('binomial', (_scalar(node), _scalar(self._sum())))
    return _quotient(node, self._sum()) if self._take(r'\over') else node

  def _argument(self) -> Node:
    """Reads an argument: a group, or one digit or letter."""
    if self._is('{'):
      return _scalar(self._group())
    token = self._peek()
    if token.kind == 'number' and not token.text.isdigit():
      raise Unread('a decimal without braces')
    if token.kind == 'number':
      return number(int(self._first().text))  # \frac12 has 1 and 2
    if token.kind in ('letters', 'mark') or token.text in tokens.NAMES:
      return Node('name', (self._first().text,))
    if token.text in (r'\sqrt', r'\frac', '('):
      return _scalar(self._atom())
    raise Unread('no argument')


  def _root(self) -> Node:
    degree = number(2)
    if self._take('['):
      degree = _scalar(self._sum())
      self._expect(']')
    if self._take('('):
      inside = _scalar(self._sum())
      self._expect(')')
    elif self._peek().kind == 'number':  # sqrt 12 has all digits under it
      inside = self._number()
    else:
      inside = self._argument()
    return Node('root', (degree, inside))

  def _bracket(self, opening: str) -> Node:
    """Reads the content of parentheses or square brackets."""
    bars, self._bars = self._bars, 0
    start = self._at
    inside = self.answer()
    self._bars = bars
    closing = self._take(')', ']', '[')
    if not closing:
      raise Unread('a bracket has no end')
    if inside.op == 'list':
      # ]1,2[ is the interval (1,2).
      pair = opening.replace(']', '(') + closing.replace('[', ')')
      return Node('tuple', (pair, inside.args))
    if opening + closing == '()':
      return inside
    if opening + closing == '[]':
      names = [t.text for t in self._tokens[start:self._at - 1]]
      if len(names) == 1 and re.fullmatch('[A-Z]{3,}', names[0]):
        return Node('name', (f'[{names[0]}]',))
      return _scalar(inside)
    raise Unread('brackets that do not match')

  def _items(self, closing: str) -> tuple[Node, ...]:
    """Reads elements up to a closing bracket."""
    bars, self._bars = self._bars, 0
    inside = self.answer()
    self._expect(closing)
    self._bars = bars
    return inside.args if inside.op == 'list' else (inside,)

  def _absolute(self, sign: str) -> Node:
    self._bars += 1
    inside = _scalar(self._sum())
    self._expect(sign)
    self._bars -= 1
    return Node('abs' if sign == '|' else 'norm', (inside,))

  def _function(self, name: str) -> Node:
    """Reads a function, its base or power, and its argument."""
    base = power = None
    while self._is('_', '^'):
      if self._next().text == '_':
        base = self._group() if self._is('{') else self._argument()
      elif power is not None or self._is(r'\circ', "'"):
        raise Unread('a power of a function')
      else:
        power = self._group() if self._is('{') else self._exponent()
    if name in ('gcd', 'lcm', 'max', 'min'):
      opening = self._take('(', r'\{')
      if not opening or power is not None or base is not None:
        raise Unread(f'{name} without brackets')
      inside = self.answer()
      self._expect(_CLOSES[opening])
      items = inside.args if inside.op in ('list', 'set') else (inside,)
      return Node('function', (name, tuple(map(_scalar, items))))
    argument = self._function_argument()
    if name in ('ln', 'log', 'lg') and self._is('^') and argument.op not in (
        'name', 'number', 'abs'):
      argument = self._power(argument)
    if name == 'lg':
      name, base = 'log', number(10)
    if name == 'log' and base == Node('name', ('e',)):
      name, base = 'ln', None
    if base is not None and name != 'log':
      raise Unread('an index of a function')
    if power == number(-1):
      if name not in ('sin', 'cos', 'tan', 'cot', 'sec', 'csc'):
        raise Unread('an inverse function')
      name, power = 'arc' + name, None
    if name == 'log':
      node = Node('log', (base or Node('name', ('base',)), argument))
    else:
      node = Node('function', (name, (argument,)))
    return node if power is None else Node('^', (node, _scalar(power)))

  def _function_argument(self) -> Node:
    """Reads an argument in brackets, or the factors that stand side by side."""
    token = self._peek()
    if token.text in ('(', '[', '{') and token.kind == 'sign':
      inside = self._atom()
      if self._is('^') and token.text == '{':
        raise Unread('a power of an argument')
      return _scalar(inside)
    if self._is('|'):
      return _scalar(self._factor())
    node = _scalar(self._factor())
    while self._peek().text[1:] not in tokens.FUNCTIONS:
      if self._is('('):
        if self._unit_ahead():
          break
        raise Unread('an argument without brackets before a bracket')
      if not self._starts_factor(self._tokens[self._at - 1]):
        break
      node = _product(node, self._factor())
    return node

  def _accent(self, text: str) -> Node:
    r"""Reads an accent over a name or an expression."""
    start, name = self._at, ''
    if self._take('{'):
      while self._peek().kind in ('letters', 'mark'):
        name += self._next().text
    if name and self._take('}'):
      if re.fullmatch('[A-Z]{2}', name) and text == r'\bar':
        name = ''.join(sorted(name))  # a segment
      inside = Node('name', (name,))
    else:
      self._at = start
      inside = self._argument()
    if inside.op == 'name':
      return self._indexed(f'{text} {inside.args[0]}')
    return Node('accent', (text, inside))

  def _figure(self, text: str) -> Node:
    """Reads an angle or a triangle; its points may be named from either end."""
    names = ''
    while self._peek().kind in ('letters', 'mark'):
      names += self._next().text
      if self._take('_'):
        names += '_' + self._index()
    if not names and self._peek().kind == 'number':
      names = self._next().text
    if not names:
      raise Unread('a figure without a name')
    if len(names) == 3 and text == r'\angle':
      names = min(names, names[::-1])
    return Node('name', (f'{text} {names}',))

  def _environment(self, name: str) -> Node:
    """Reads a matrix, or a system of rows."""
    rows: list[list[Node]] = [[]]
    while not self._is(rf'\end{{{name}}}'):
      if self._is('&', '\\\\') and name not in _ROWS and (
          not rows[-1] or self._tokens[self._at - 1].text == '&'):
        raise Unread('an empty cell')
      if self._take('\\\\'):
        rows.append([])
      elif not self._take('&'):
        rows[-1].append(self.answer() if name in _ROWS else self._sum())
    self._next()
    rows = [row for row in rows if row]
    if name in _ROWS and all(len(r) == 1 for r in rows):
      items = tuple(r[0] for r in rows)
      return items[0] if len(items) == 1 else Node('list', items)
    if name not in _MATRICES or not rows or len({len(r) for r in rows}) > 1:
      raise Unread('rows of different lengths')
    return Node('matrix', tuple(tuple(map(_scalar, r)) for r in rows))


def _scalar(node: Node) -> Node:
  """Returns an expression; raises `Unread` for anything else."""
  if node.op in WHOLES or node.op == 'tuple' and node.args[0] != '()':
    raise Unread(f'a {node.op} in an expression')
  return node


def _signed(sign: str, node: Node) -> Node:
  if sign in ('+', '-'):
    return negated(node) if sign == '-' else node
  return Node(sign[1:], (node,))


def _quotient(a: Node, b: Node) -> Node:
  if b == number(0):
    raise Unread('a division by zero')
  return Node('/', (_scalar(a), _scalar(b)))


def _product(a: Node, b: Node) -> Node:
  a, b = _scalar(a), _scalar(b)
  return Node('*', (*(a.args if a.op == '*' else (a,)), b))


def _marked(node: Node, mark: str) -> Node:
  """Adds primes, or the bracket of y^{(4)}, to a name."""
  if node.op != 'name':
    raise Unread('a mark that is on no name')
  return Node('name', (node.args[0] + mark,))
