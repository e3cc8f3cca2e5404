r"""A small parser of the LaTeX of answers, for the benchmark of the judge.

It shares nothing with the judge or with math-verify. `parse` turns a text into
one of the shapes below, or raises Unread if it does not understand all of it.

  ('value', tree, unit)       3, 2\sqrt{5}, x^2+1, 20\text{ miles}, 30^\circ
  ('sequence', '(', [..], ']')  a tuple or an interval, with its brackets
  ('list', [..])              a list or a set: without an order
  ('union', [..])             intervals joined by \cup
  ('matrix', name, [[..]])    the rows of a matrix
  ('relation', [..], [..])    the sides and the signs between them
  ('base', digits, base)      a number with the base as its index
  ('words', text)             letters and digits of a text in words

A tree is a number (Fraction), a name (str) or a tuple (operator, trees).
"""

import fractions
import re

_DROP = re.compile(
    r'\\(?:left|right|[bB]ig+[lrm]?|displaystyle|quad)(?![a-zA-Z])'
    r'|(?<!\\)\\[!,;: ]|[$~]')
_TEXT = re.compile(
    r'\\(?:mbox|textnormal|textrm|mathrm|textbf|mathbf|textit|mathit|mathbb'
    r'|operatorname)(?=\s*\{)')
_TOKEN = re.compile(
    r'\\text\s*\{[^{}]*\}|\\[a-zA-Z]+|\\.|\d+(?:\.\d+)?|\.\d+|[a-zA-Z]|\S')
_GROUPS = re.compile(r'(?<![\d.])[1-9]\d{0,2}(?:,\d{3})+(?!\d)')
_RELATION = {'<': '<', r'\lt': '<', '>': '>', r'\gt': '>', '=': '=',
             r'\le': '<=', r'\leq': '<=', r'\leqslant': '<=', '≤': '<=',
             r'\ge': '>=', r'\geq': '>=', r'\geqslant': '>=', '≥': '>=',
             r'\ne': '!=', r'\neq': '!=', r'\in': 'in', r'\approx': '~'}
_FUNCTION = {'\\' + name for name in (
    'sin', 'cos', 'tan', 'cot', 'sec', 'csc', 'arcsin', 'arccos', 'arctan',
    'ln', 'log', 'sinh', 'cosh', 'tanh', 'exp')}
_GREEK = {'\\' + name for name in (
    'pi', 'alpha', 'beta', 'gamma', 'theta', 'phi', 'lambda', 'mu', 'omega',
    'delta', 'epsilon', 'rho', 'sigma', 'tau', 'infty', 'ell', 'emptyset',
    'triangle', 'psi', 'Delta')}
_OPEN, _CLOSE = {'(', '[', '{', r'\{'}, {')', ']', '}', r'\}'}


class Unread(Exception):
  """A text that this parser does not understand."""


def tokenize(text):
  """Returns the tokens of a text without spaces and marks of style."""
  for name in ('dfrac', 'tfrac', 'cfrac'):
    text = text.replace('\\' + name, r'\frac')
  if (text := text.strip()).startswith(r'\$'):
    text = text[2:].removesuffix('.') + (
        r'\text{dollars}' if r'\text' not in text else '')
  text = re.sub(r'\\phantom\s*(\{[^{}]*\}|\\[a-zA-Z]+|.)', ' ',
                text.replace(r'\$', ' '))
  text = _DROP.sub(' ', _TEXT.sub(r'\\text', text)).strip()
  return _TOKEN.findall(text.removesuffix('.'))


def words(text):
  """Returns the letters and digits of a text, without the case."""
  return ''.join(re.findall(r'[a-z0-9]+', re.sub(
      r'\\[a-zA-Z]+|\\.', ' ', text).lower()))


def parse(text):
  """Returns the shape of an answer."""
  text = re.sub(r'(?<=\d)\s*(?:,\s*\\!|\{,\})\s*(?=\d{3})', '', text.strip())
  bare = re.sub(r'\\text\w*\s*\{([^{}]*)\}', r'\1', text)
  if based := re.fullmatch(r'(-?[0-9A-Z]+)_\{?(\d+)\}?\.?', bare):
    return 'base', based[1], int(based[2])
  if re.fullmatch(r'[^\\\d=<>^_+*/]*[A-Za-z]{2}[^\\\d=<>^_+*/]*', bare) or (
      re.fullmatch(r'\W*\\(?:text\w*|mbox|mathrm|mathbf)\s*\{[^{}]*\}\W*',
                   text)):
    return 'words', words(bare)
  if re.fullmatch(r'[-+\\$\s]*[\d,]+(\.\d+)?\.?\s*(\\text.*)?', text):
    text = _GROUPS.sub(lambda m: m[0].replace(',', ''), text)
  tokens = tokenize(text)
  if r'\pm' in tokens:
    both = [[sign if t == r'\pm' else t for t in tokens] for sign in '+-']
    return 'list', [shape(one) for one in both]
  return shape(tokens)


def split(tokens, marks):
  """Splits at the marks outside brackets; returns the parts and the marks."""
  parts, found, depth = [[]], [], 0
  for i, token in enumerate(tokens):
    if token in _OPEN or token == r'\begin':
      depth += token != '{' or i == 0 or tokens[i - 1] not in (
          r'\begin', r'\end')
    elif token in _CLOSE or token == r'\end':
      depth -= 1
    if token == '{' and i and tokens[i - 1] in (r'\begin', r'\end'):
      depth += 1
    if not depth and token in marks:
      parts.append([])
      found.append(token)
    else:
      parts[-1].append(token)
  return parts, found


def shape(tokens):
  """Returns the shape of tokens."""
  if not tokens:
    raise Unread('nothing')
  if based := re.fullmatch(r'(-?\d+)_\{?(\d+)\}?', ''.join(tokens)):
    return 'base', based[1], int(based[2])
  commas, joins = {',', ';'}, {t for t in tokens if re.fullmatch(
      r'\\text\s*\{\s*,?\s*(?:and|or)\s*\}', t)}
  parts, found = split(tokens, commas | joins)
  if found:
    return 'list', [shape(p) for p in parts if p]
  parts, found = split(tokens, {r'\cup'})
  if found:
    return 'union', [shape(p) for p in parts]
  parts, found = split(tokens, _RELATION)
  if found:
    sides = [shape(p) if p or i else ('words', '') for i, p in enumerate(parts)]
    return 'relation', sides, [_RELATION[f] for f in found]
  parts, found = split(tokens, ':')
  if found:
    return 'sequence', ':', [shape(p) for p in parts], ':'
  if tokens[0] == r'\begin':
    return matrix(tokens)
  if enclosed(tokens):
    inner, found = split(tokens[1:-1], commas)
    if tokens[0] == r'\{' and tokens[-1] == r'\}':
      return 'list', [shape(p) for p in inner]
    if tokens[0] == '{':
      return shape(tokens[1:-1])
    if found:
      return 'sequence', tokens[0], [shape(p) for p in inner], tokens[-1]
  return value(tokens)


def enclosed(tokens):
  """Says whether the first bracket is closed by the last token."""
  depth = 0
  for i, token in enumerate(tokens):
    depth += (token in _OPEN) - (token in _CLOSE)
    if not depth:
      return i > 0 and i == len(tokens) - 1
  return False


def matrix(tokens):
  """Returns the shape of a matrix."""
  text = ''.join(tokens)
  found = re.match(r'\\begin\{(\w+)\}', text)
  if not found or not text.endswith(rf'\end{{{found[1]}}}'):
    raise Unread(text)
  first, last = tokens.index('}') + 1, len(tokens) - tokens[::-1].index(r'\end')
  rows, _ = split(tokens[first:last - 1], {r'\\'})
  rows = rows if rows[-1] else rows[:-1]
  return 'matrix', found[1], [
      [shape(cell) for cell in split(row, {'&'})[0]] for row in rows]


def value(tokens):
  """Returns the shape of an expression with a unit, if it has one."""
  unit = ''
  while tokens and tokens[-1].startswith(r'\text') and tokens[-1][-1] == '}':
    unit = tokens[-1][tokens[-1].index('{') + 1:-1].strip() + unit
    tokens = tokens[:-1]
  if unit and tokens[-1:] in (['^'], ['_']):
    raise Unread(unit)
  power = None
  if len(tokens) > 2 and tokens[-2] == '^' and tokens[-3].startswith(r'\text'):
    power, tokens = tokens[-1], tokens[:-2]
    unit, tokens = tokens[-1][6:-1].strip() + '^' + power, tokens[:-1]
  ends = [t for t in ('^', '{', r'\circ', '}') if r'\circ' in tokens]
  for end, name in ((['^', r'\circ'], 'degrees'), (ends, 'degrees'),
                    ([r'\%'], '%'), (['%'], '%')):
    if end and tokens[-len(end):] == end:
      unit, tokens = name, tokens[:-len(end)]
  if not tokens:
    return 'words', words(unit)
  reader = Reader(tokens)
  tree = reader.sum()
  if reader.left:
    raise Unread(' '.join(reader.left))
  return 'value', tree, re.sub(r'\s+', ' ', unit.lower())


class Reader:
  """Recursive descent: sum > product > sign > power > atom."""

  def __init__(self, tokens):
    self.left = list(tokens)

  def peek(self):
    """Returns the next token, or nothing."""
    return self.left[0] if self.left else ''

  def take(self, wanted=None):
    """Removes the next token."""
    if not self.left or wanted and self.left[0] != wanted:
      raise Unread(f'{wanted} at {" ".join(self.left)}')
    return self.left.pop(0)

  def sum(self):
    """Reads terms."""
    tree = self.product()
    while self.peek() in ('+', '-'):
      tree = self.take(), tree, self.product()
    return tree

  def product(self):
    """Reads factors, also without a sign between them."""
    if self.peek() in ('-', '+'):
      sign = self.take()
      inner = self.product()
      return ('neg', inner) if sign == '-' else inner
    mixed = re.fullmatch(r'\d+', self.peek()) and self.left[1:2] == [r'\frac']
    tree = self.power()
    if mixed and (part := self.proper()):
      tree = '+', tree, part
    while True:
      token = self.peek()
      if token in (r'\cdot', r'\times', '*', '·'):
        self.take()
        tree = '*', tree, self.factor()
      elif token in ('/', r'\div'):
        self.take()
        tree = '/', tree, self.factor()
      elif self.starts(token):
        tree = '*', tree, self.power()
      else:
        return tree

  def proper(self):
    """Reads the fraction of a mixed number, if it is one of numbers."""
    trial = Reader(self.left)
    tree = trial.power()
    if tree[0] == '/' and all(
        isinstance(t, fractions.Fraction) for t in tree[1:]):
      self.left = trial.left
      return tree
    return None

  def factor(self):
    """Reads a factor with its sign."""
    if self.peek() == '-':
      self.take()
      return 'neg', self.factor()
    return self.power()

  def starts(self, token):
    """Says whether a factor starts here."""
    return bool(re.match(r'[\d.a-zA-Z({]|\[', token)) and token != '.' or (
        token in _FUNCTION | _GREEK | {r'\frac', r'\sqrt', r'\binom'})

  def power(self):
    """Reads an atom with its powers."""
    tree = self.atom()
    while self.peek() in ('^', '!'):
      if self.take() == '!':
        tree = 'factorial', tree
      else:
        tree = ('degrees', tree) if self.degree() else (
            '^', tree, self.argument())
    return tree

  def degree(self):
    """Reads a sign of degrees, if it is next."""
    for sign in (['{', r'\circ', '}'], [r'\circ']):
      if self.left[:len(sign)] == sign:
        del self.left[:len(sign)]
        return True
    return False

  def argument(self):
    """Reads a group in braces, or one letter, digit or command."""
    if self.peek() == '{':
      return self.group('}')
    if self.peek() == '-':
      raise Unread('a sign without braces')
    if len(self.peek()) > 1 and self.peek()[0].isdigit():
      number = self.take()
      self.left.insert(0, number[1:])
      return fractions.Fraction(number[0])
    return self.atom()

  def group(self, end):
    """Reads what is in brackets."""
    self.take()
    tree = self.sum()
    self.take(end)
    return tree

  def atom(self):
    """Reads a number, a name, a group or a command with its arguments."""
    token = self.peek()
    if re.match(r'\.?\d', token):
      return fractions.Fraction(self.take())
    if token in ('(', '[', '{'):
      return self.group({'(': ')', '[': ']', '{': '}'}[token])
    if token == '|':
      return 'abs', self.group('|')
    if token in _FUNCTION:
      return self.function()
    self.take()
    if token == r'\frac':
      return '/', self.argument(), self.argument()
    if token == r'\binom':
      return 'binom', self.argument(), self.argument()
    if token == r'\sqrt':
      degree = self.group(']') if self.peek() == '[' else fractions.Fraction(2)
      return 'root', self.argument(), degree
    if re.fullmatch('[a-zA-Z]', token) or token in _GREEK:
      return self.name(token)
    raise Unread(token)

  def name(self, token):
    """Reads the index and the primes of a name."""
    while self.peek() in ('_', "'"):
      token += self.take()
      if token[-1] == '_':
        depth = 0
        while True:
          depth += (self.peek() == '{') - (self.peek() == '}')
          token += self.take()
          if not depth:
            break
    return re.sub('[{}]', '', token)

  def function(self):
    """Reads a function with its power, base and argument."""
    name, base, power = self.take()[1:], None, None
    while self.peek() in ('^', '_'):
      if self.take() == '^':
        power = self.argument()
      else:
        base = self.argument()
    if self.peek() in ('(', '{'):
      inner = self.power()
    else:  # letters and numbers that follow, up to the next sign
      inner = self.power()
      while self.starts(self.peek()) and self.peek() not in _FUNCTION | {'('}:
        inner = '*', inner, self.power()
    tree = (name, inner, base) if base else (name, inner)
    return ('^', tree, power) if power else tree
