r"""Changes of one place of a reference, after which it is another answer.

Each rule yields (kind, text) for the places of an answer that it applies to.
`evaluator.py` says which of them left the value equal; `chosen` leaves these
out and counts them.
"""

import collections
import random
import re

from benchmarks.judge import evaluator

TOKEN = re.compile(
    r'\\(?:text|mbox|textnormal|textbf|mathbf|mathrm)\s*\{[^{}]*\}'
    r'|\\(?:begin|end)\{\w+\}|\\[a-zA-Z]+|\\.|\d+(?:\.\d+)?|\.\d+|[a-zA-Z]|\S')
_GROUP = r'\{((?:[^{}]|\{[^{}]*\})*)\}'
_FUNCTIONS = {r'\sin': r'\cos', r'\cos': r'\sin', r'\tan': r'\cot',
              r'\cot': r'\tan', r'\sec': r'\csc', r'\csc': r'\sec',
              r'\log': r'\sin', r'\ln': r'\cos', r'\arctan': r'\arcsin'}
_RELATIONS = {
    '<': (r'\le ', '>', '='), '>': (r'\ge ', '<', '='),
    r'\le': ('<', r'\ge ', '='), r'\leq': ('<', r'\geq ', '='),
    r'\ge': ('>', r'\le ', '='), r'\geq': ('>', r'\leq ', '='),
    '=': (r'\ne ', '<', r'\ge ')}
_UNITS = {
    'square': 'cubic', 'cubic': 'square', 'cm': 'm', 'inches': 'feet',
    'feet': 'inches', 'miles': 'kilometers', 'mph': 'kph', 'hours': 'minutes',
    'minutes': 'seconds', 'seconds': 'hours', 'days': 'weeks', 'cents':
    'dollars', 'dollars': 'cents', 'meters': 'feet', 'degrees': 'radians',
    'pounds': 'ounces', 'ounces': 'pounds', 'years': 'months', 'mg': 'kg',
    'gallons': 'quarts', 'liters': 'gallons', 'a.m.': 'p.m.', 'p.m.': 'a.m.',
    'yards': 'feet', 'grams': 'kilograms', 'sq': 'cubic', 'ft': 'cm',
    'in': 'cm', 'inch': 'foot', 'm': 'cm', 'kg': 'g', 'nickels': 'dimes'}


def changes(text, rng):
  """Yields (kind, text) for all changes of a reference."""
  tokens = list(TOKEN.finditer(text))

  def put(match, new):
    return text[:match.start()] + new + text[match.end():]

  for rule in (numbers, signs, operators, letters, indices, relations, brackets,
               names, units):
    for kind, match, new in rule(tokens, rng):
      yield kind, put(match, new)
  for rule in (fractions_, degrees, powers, roots, elements, matrices, terms,
               groups):
    yield from rule(text)


def numbers(tokens, rng):
  """Changes, drops and adds a digit, and moves a point."""
  based = any(match[0] == '_' for match in tokens)
  for match in tokens:
    number = match[0]
    if not number[-1].isdigit():
      continue
    places = [i for i, c in enumerate(number) if c.isdigit()]
    i = rng.choice(places)
    wrong = rng.choice([d for d in '123456789' if d != number[i]])
    yield 'digit changed', match, number[:i] + wrong + number[i + 1:]
    yield 'digit added', match, number[:i + 1] + wrong + number[i + 1:]
    if len(places) > 1:
      yield 'digit dropped', match, number[:i] + number[i + 1:]
    if '.' in number and number[0] != '.':
      yield 'point dropped', match, number.replace('.', '')
    elif len(number) > 1 and number[-1] != '0' and not based and (
        '.' not in number):
      yield 'point added', match, f'{number[:-1]}.{number[-1]}'
    if len(tokens) == 1 and number.isdigit() and int(number) > 2:
      yield 'factorial added', match, number + '!'


def signs(tokens, rng):
  """Changes the sign of what starts a text, a group, a cell or an element."""
  del rng
  for before, match in zip([None, *tokens], tokens):
    start = not before or before[0] in (
        '(', '[', ',', '&', r'\\', '=', '<') or before[0].startswith(r'\begin')
    if start and match[0] == '-':
      yield 'sign', match, ''
    elif start and re.match(r'[\da-zA-Z.]|\\[dt]?frac|\\sqrt|\\pi|\\infty',
                            match[0]) and match[0].strip('0.'):
      yield 'sign', match, '-' + match[0]


def operators(tokens, rng):
  """Changes an operator between two terms, factors, or at a power."""
  seen = {m[0] for m in tokens}
  for before, match in zip(tokens, tokens[1:]):
    operator = match[0]
    binary = re.search(r'[\da-zA-Z})\]]$', before[0]) and not re.match(
        r'\\(begin|text|mbox)', before[0])
    if operator in '+-' and binary:
      yield 'operator', match, '-' if operator == '+' else '+'
      yield 'operator', match, rng.choice((r' \cdot ', '/'))
    elif operator in (r'\cdot', r'\times', '*'):
      yield 'operator', match, rng.choice('+-/')
    elif operator == '/':
      yield 'operator', match, rng.choice((r' \cdot ', '+', '-'))
    elif operator == '^' and binary and r'\circ' not in seen:
      yield 'operator', match, r' \cdot '
    elif operator == r'\pm':
      yield 'operator', match, '+'
    elif operator == r'\cup':
      yield 'operator', match, r'\cap '


def letters(tokens, rng):
  """Changes a letter or its case; names of values are a kind of their own."""
  seen = {m[0] for m in tokens}
  for i, match in enumerate(tokens):
    letter = match[0]
    after = tokens[i + 1][0] if i + 1 < len(tokens) else ''
    named = not i and after in ('=', r'\in')
    if re.fullmatch('[a-zA-Z]', letter):
      others = [c for c in 'abcdfghjkmnpqrstuvwxyz' if c not in seen]
      yield ('name' if named else 'letter'), match, rng.choice(others)
      if i and tokens[i - 1][0][-1].isdigit() and after not in ('^', '_'):
        yield 'letter dropped', match, ''
      if len(tokens) > 1:
        yield ('name' if named else 'case'), match, letter.swapcase()
    elif letter in (r'\pi', r'\theta', r'\alpha'):
      yield 'letter', match, r'\phi '
      if i and letter == r'\pi' and re.match(r'[\d}]', tokens[i - 1][0][-1]):
        yield 'letter dropped', match, ''
    elif letter.startswith('\\') and len(tokens) == 1 and letter[-1] == '}':
      word = letter[letter.index('{') + 1:-1]
      if found := list(re.finditer('[a-zA-Z]', word)):
        one = rng.choice(found)
        others = [c for c in 'abdeghlmnoprstuy' if c != one[0].lower()]
        new = word[:one.start()] + rng.choice(others) + word[one.end():]
        yield 'letter of a word', match, letter.replace(word, new)


def indices(tokens, rng):
  """Changes the index of a letter or the base of a number."""
  del rng
  for i, match in enumerate(tokens):
    if match[0].isdigit() and i > 1 and (
        tokens[i - 1][0] == '_'
        or tokens[i - 1][0] == '{' and tokens[i - 2][0] == '_'):
      base = int(match[0])
      yield 'index', match, str(base + 1)
      yield 'index', match, str(base + 4)
      if base > 2:
        yield 'index', match, str(base - 1)


def relations(tokens, rng):
  """Changes a relation, or adds one before a value."""
  for match in tokens:
    for new in _RELATIONS.get(match[0], ()):
      yield 'relation', match, new
  if tokens and re.match(r'[-\d]|\\[dt]?frac', tokens[0][0]):
    if not {m[0] for m in tokens} & {',', *_RELATIONS}:
      new = rng.choice((r'\le ', r'\ge ', '<', '>', r'\ne '))
      yield 'relation added', tokens[0], new + tokens[0][0]


def brackets(tokens, rng):
  """Changes round brackets of intervals and tuples to square ones."""
  del rng
  starts, wide = [], set()
  for i, match in enumerate(tokens):
    if match[0] in '([':
      starts.append(i)
    elif match[0] == ',' and starts:
      wide.add(starts[-1])
    elif match[0] in ')]' and starts and (start := starts.pop()) in wide:
      other = dict(zip('([)]', '[(])'))
      yield 'bracket', tokens[start], other[tokens[start][0]]
      yield 'bracket', match, other[match[0]]


def names(tokens, rng):
  """Changes the name of a function."""
  del rng
  for match in tokens:
    if match[0] in _FUNCTIONS:
      yield 'function', match, _FUNCTIONS[match[0]]


def units(tokens, rng):
  """Changes a unit to another one of the same kind."""
  del rng
  if len(tokens) < 2:
    return
  for match in tokens[1:]:
    if match[0].startswith('\\') and match[0].endswith('}'):
      if re.search(r'(?<=[{ ])(square|cubic) ', match[0]):
        yield 'unit', match, re.sub('(square|cubic) ', '', match[0])
      for word in re.findall(r'[a-z.]+', match[0].partition('{')[2]):
        if word in _UNITS:
          yield 'unit', match, re.sub(
              rf'(?<![a-z\\]){re.escape(word)}(?![a-z])', _UNITS[word],
              match[0])
    elif match[0] == r'\%' and match is tokens[-1]:
      yield 'unit', match, r'\text{ dollars}'


def fractions_(text):
  """Exchanges numerator and denominator."""
  for m in re.finditer(rf'(\\[dt]?frac){_GROUP}{_GROUP}', text):
    yield 'upside down', (f'{text[:m.start()]}{m[1]}{{{m[3]}}}{{{m[2]}}}'
                          f'{text[m.end():]}')


def degrees(text):
  """Changes degrees to radians."""
  if found := re.fullmatch(r'([\d.]+)\^(\\circ|\{\\circ\})', text):
    yield 'unit', found[1] + r'\text{ radians}'


def powers(text):
  """Leaves a power out."""
  for m in re.finditer(r'\^(\d|[a-zA-Z]|\{[^{}\\]*\})', text):
    yield 'power dropped', text[:m.start()] + ' ' + text[m.end():]


def roots(text):
  """Changes the degree of a root, or leaves the root out."""
  for m in re.finditer(r'\\sqrt(?:\[(\d)\])?(?=\{)', text):
    before, after = text[:m.start()], text[m.end():]
    yield 'root', f'{before}\\sqrt[{int(m[1] or 2) + 1}]{after}'
    yield 'root', before + (r'\sqrt' if m[1] else ' ') + after


def parts(text, marks=','):
  """Splits at the commas outside all brackets."""
  found, depth = [''], 0
  for char in text:
    depth += (char in '([{') - (char in ')]}')
    if char == marks and not depth:
      found.append('')
    else:
      found[-1] += char
  return found


def elements(text):
  """Drops, adds and exchanges elements of lists, tuples and intervals."""
  around = re.fullmatch(r'((?:\\left)?\s*(?:\\\{|[(\[]))(.*?)'
                        r'((?:\\right)?\s*(?:\\\}|[)\]]))', text)
  first, inner, last = around.groups() if around else ('', text, '')
  found = parts(inner)
  whole = re.fullmatch(r'-?\\?\$?\d{1,3}(,(\\!)?\d{3})+(\.\d+)?', text.strip())
  if len(found) < 2 or whole or inner.count(r'\cup'):
    if r'\cup' in text:
      intervals = text.split(r'\cup')
      for i in range(len(intervals)):
        yield 'element dropped', r'\cup'.join(
            intervals[:i] + intervals[i + 1:]).strip()
    return
  tuple_ = around and '{' not in first
  for i in range(len(found)):
    if len(found) > 2 or not tuple_:
      rest = found[:i] + found[i + 1:]
      yield 'element dropped', first + ','.join(rest).strip() + last
    yield 'element added', first + ','.join(
        found[:i] + [found[i], ' 57'] + found[i + 1:]) + last
    if tuple_ and i and found[i].strip() != found[i - 1].strip():
      swapped = found[:i - 1] + [found[i], found[i - 1]] + found[i + 1:]
      yield 'elements exchanged', first + ','.join(swapped) + last


def matrices(text):
  """Exchanges neighbours in a matrix, drops a row and adds a cell."""
  found = re.fullmatch(r'(\\begin\{\w+\})(.*)(\\end\{\w+\}\.?)', text)
  if not found:
    return
  rows = [row.split('&') for row in re.split(r'\\\\', found[2])]

  def built(rows):
    return found[1] + r' \\ '.join(
        ' & '.join(c.strip() for c in row) for row in rows) + found[3]

  for i, row in enumerate(rows):
    yield 'element dropped', built(rows[:i] + rows[i + 1:])
    yield 'element added', built(rows[:i] + [row + ['7']] + rows[i + 1:])
    for j in range(1, len(row)):
      new = row[:j - 1] + [row[j], row[j - 1]] + row[j + 1:]
      if row[j].strip() != row[j - 1].strip():
        yield 'elements exchanged', built(rows[:i] + [new] + rows[i + 1:])
    if i and row != rows[i - 1]:
      yield 'elements exchanged', built(
          rows[:i - 1] + [row, rows[i - 1]] + rows[i + 1:])


def terms(text):
  """Drops a term of a sum or of an equation, or adds one."""
  if '{' in re.sub(r'\\(?:frac|sqrt|dfrac)|\^', '', text) and (
      r'\text' in text or r'\begin' in text):
    return
  depth, starts = 0, [0]
  for i, char in enumerate(text):
    depth += (char in '([{') - (char in ')]}')
    if not depth and char in '+-=<>' and i:
      starts.append(i)
  starts.append(len(text))
  for start, end in zip(starts, starts[1:]):
    term = text[start:end]
    if len(starts) > 2 and term.lstrip(' +-'):
      if term[0] in '+-' or not start and text[end:end + 1] in ('+', '-'):
        yield 'term dropped', (text[:start] + text[end:]).strip()
    if term[:1] in '=<>' and text[start - 1:start] != '\\' and '=' in text:
      yield 'term added', (text[:end] + ' + 1 ' + text[end:]).strip()
  if len(starts) > 2 and ',' not in text and '=' not in text:
    yield 'term added', text + ' + 1'


def groups(text):
  """Leaves out a pair of round brackets around a sum."""
  for m in re.finditer(r'(\\left)?\(([^(),]*[-+][^(),]*?)(\\right)?\)', text):
    yield 'brackets dropped', text[:m.start()] + m[2] + text[m.end():]


def chosen(answers, count, seed=0, whole=0.2):
  """Chooses changes that differ, spread over their kinds.

  Args:
    answers: the references, each once.
    count: how many to choose.
    seed: of the choice.
    whole: the largest share of references that are integers.

  Returns:
    (kind, reference, changed) for the chosen, and (verdict, kind, reference,
    changed) for those that were left out on the way.
  """
  rng = random.Random(seed)
  kinds = collections.defaultdict(lambda: ([], []))
  for answer in sorted(set(answers)):
    seen = {''.join(answer.split())}
    for kind, new in changes(answer, rng):
      bare = ''.join(new.split())
      if bare not in seen and bare[-1:] not in ('=', '\\'):
        seen.add(bare)
        simple = bool(re.fullmatch(r'-?[\d,]+', answer))
        kinds[kind][simple].append((kind, answer, new))
  queues = []
  for kind in sorted(kinds):
    for pool in kinds[kind]:
      rng.shuffle(pool)
    queues.append(kinds[kind])
  found, left, simple = [], [], 0
  while len(found) < count and any(a or b for a, b in queues):
    for other, integers in queues:
      if len(found) == count:
        break
      few = simple < whole * (len(found) + 1)
      pool = integers if integers and few and (
          not other or rng.random() < whole) else other
      if not pool:
        continue
      one = pool.pop()
      verdict = evaluator.compare(one[1], one[2])
      if verdict == 'unknown' and different(one):
        verdict = 'differs'
      if verdict == 'differs':
        found.append(one)
        simple += pool is integers
      else:
        left.append((verdict, *one))
    if not any(a or b and simple < whole * (len(found) + 1)
               for a, b in queues):
      break
  return found, left


def different(change):
  """Says whether a change that is not understood has another meaning anyhow.

  So has one that added a relation or changed it, or that exchanged a union for
  an intersection.
  """
  kind, _, new = change
  return kind in ('relation', 'relation added') or r'\cap' in new
