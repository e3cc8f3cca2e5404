r"""Respellings of expressions: the same value by construction.

The rules beside those of `respellings.py`. Each works on the text of a
reference, and applies only where its pattern leaves no doubt.
"""

import fractions
import re

from benchmarks.judge.changes import parts

_GROUP = r'\{((?:[^{}]|\{[^{}]*\})*)\}'
_FRACTION = re.compile(rf'(-?)\s*\\[dt]?frac{_GROUP}{_GROUP}')
_PLAIN = re.compile(r'\\[dt]?frac\{(\d+)\}\{(\d+)\}')
_SIDES = re.compile(
    r'((?:(?!\\[lg]e)[^=<>])+?)\s*(=|<|>|\\[lg]eq?(?![a-z]))\s*'
    r'((?:(?!\\[lg]e)[^=<>])+)')
_FLIP = {'=': '=', '<': '>', '>': '<', r'\le': r'\ge', r'\leq': r'\geq',
         r'\ge': r'\le', r'\geq': r'\leq'}
_UNICODE = {r'\pi': 'π', r'\infty': '∞', r'\cup': '∪', r'\le': '≤',
            r'\leq': '≤', r'\ge': '≥', r'\theta': 'θ', r'\cdot': '·',
            r'\pm': '±', '-': '−'}
_INTERVAL = re.compile(r'(?:\\left)?([(\[])([^()\[\]]*),([^()\[\]]*?)'
                       r'(?:\\right)?([)\]])')


def respell(a):
  """Yields (rule, text) for the spellings of an expression."""
  expression = not re.search(
      r'[=<>,;:&|]|\\(text|mbox|le|ge|cup|in|begin|\{|%|pm|circ|approx)', a)
  for rule in (marks, style, fraction_forms, intervals, matrix_forms,
               list_forms, units):
    yield from rule(a)
  if expression and not re.search('[A-Za-z]{3}', re.sub(r'\\\w+', '', a)):
    for rule in (sums, products, roots):
      yield from rule(a)
    if not re.search('[a-zA-Z]', re.sub(r'\\[a-zA-Z]+', '', a)):
      yield 'name of an expression', f'x = {a}'
  if sides := _SIDES.fullmatch(a):
    if r'\text' not in a and r'\circ' not in a and ',' not in a:
      yield from equations(*sides.groups())


def marks(a):
  """Characters of Unicode, and braces."""
  for command, char in _UNICODE.items():
    found = command if command == '-' else re.escape(command) + r'(?![a-zA-Z])'
    if (command == '-' or '\\' + command[1:] in a) and re.search(found, a) and (
        r'\text' not in a):
      yield 'unicode', re.sub(found, char, a)
  if re.search(r'[a-z)]\^[23](?!\d)', a):
    yield 'unicode', re.sub(r'(?<=[a-z)])\^([23])(?!\d)',
                            lambda m: ' ²³'[int(m[1]) - 1], a)
  if re.search(r'_\d$', a):
    yield 'braces', re.sub(r'_(\d)$', r'_{\1}', a)
  if r'\left' not in a and re.match(r'[(\[].*[)\]]$', a) and r'\cup' not in a:
    yield 'left and right', rf'\left{a[:-1]}\right{a[-1]}'
  if r'\left' in a:
    yield 'left and right', a.replace(r'\left', '').replace(r'\right', '')


def style(a):
  """Spaces and commands of style."""
  if ' ' in a and r'\text' not in a and r'\mbox' not in a:
    yield 'spaces', re.sub(r'(?<!\\) +(?![a-zA-Z])', '', a)
  if re.search(r'\d[a-z](?![a-z])', a) and not re.search(
      r'\\(t|sin|cos|frac\d)', a):
    yield 'product', re.sub(r'(?<=\d)(?=[a-z](?![a-z]))', r' \\cdot ', a)
  if re.search(r'(?<=[\d}])\s*[-+]\s*(?=[\d\\])', a) and '^' not in a:
    yield 'spaces', re.sub(r'(?<=[\d}])\s*([-+])\s*(?=[\d\\])', r'\\, \1 \\, ',
                           a)
  if r'\frac' in a:
    yield 'fractions', a.replace(r'\frac', r'\tfrac')
  if r'\dfrac' in a:
    yield 'fractions', a.replace(r'\dfrac', r'\frac')
  if found := re.search(r'\\(sin|cos|tan|cot|sec|csc) (\w|\\\w+)$', a):
    yield 'function', f'{a[:found.start()]}\\{found[1]}({found[2]})'
    yield 'function', f'{a[:found.start()]}\\{found[1]}{{{found[2]}}}'


def fraction_forms(a):
  """Other forms of a fraction; also those in tuples and sums."""
  for m in _FRACTION.finditer(a):
    before, after = a[:m.start()].rstrip(), a[m.end():].lstrip()
    alone = (not before or before[-1] in '(,[=+' or before.endswith(
        r'\left(')) and (not after or after[0] in '),]+-' or after.startswith(
            r'\right'))
    if not alone or before.endswith('+') and m[1]:
      continue
    sign, top, low = m.groups()

    def put(new, before=before, after=after):
      return f'{before} {new} {after}'.strip()

    yield 'slash', put(f'{sign}({top})/({low})')
    if sign:
      yield 'sign of a fraction', put(rf'\frac{{-({top})}}{{{low}}}')
      yield 'sign of a fraction', put(rf'\frac{{{top}}}{{-{low}}}' if
                                      low.isdigit() else rf'-(\frac{{{top}}}'
                                      rf'{{{low}}})')
    if top.isdigit() and low.isdigit():
      yield 'not reduced', put(rf'{sign}\frac{{{2 * int(top)}}}'
                               rf'{{{2 * int(low)}}}')
      if int(top) > int(low) > 1 and int(top) % int(low):
        whole, rest = divmod(int(top), int(low))
        yield 'mixed number', put(rf'{sign}{whole}\frac{{{rest}}}{{{low}}}')
      if 10**4 % int(low) == 0:
        value = fractions.Fraction(int(top), int(low))
        yield 'decimal', put(f'{sign}{float(value)}')
    factor = re.fullmatch(r'(\d*)\s*((?:\\sqrt\{\d+\}|\\pi)+)', top)
    if factor and re.fullmatch(r'\d+', low):
      yield 'coefficient', put(
          rf'{sign}\frac{{{factor[1] or 1}}}{{{low}}}{factor[2]}')
    root = re.fullmatch(r'(\d*)\s*\\sqrt\{(\d+)\}', top)
    if root and re.fullmatch(r'\d+', low):
      yield 'rationalised', put(
          rf'{sign}\frac{{{int(root[1] or 1) * int(root[2])}}}'
          rf'{{{low}\sqrt{{{root[2]}}}}}')
    if two := re.fullmatch(r'([^-+{}()]+)\s*([-+])\s*(\d*(?:\\sqrt\{\d+\})?'
                           r'|[^-+{}()]+)', top):
      if not sign and not before:
        yield 'split fraction', put(
            rf'\frac{{{two[1]}}}{{{low}}} {two[2]} \frac{{{two[3]}}}{{{low}}}')


def terms(a):
  """Returns the signed terms of a sum."""
  found, depth = [''], 0
  for i, char in enumerate(a):
    depth += (char in '([{') - (char in ')]}')
    if char in '+-' and not depth and i and found[-1].strip():
      found.append('')
    found[-1] += char
  return [t.strip() for t in found if t.strip()]


def join(found):
  """Returns the text of signed terms."""
  text = ' '.join(t if t[0] in '+-' else '+' + t for t in found)
  return text.removeprefix('+').strip()


def sums(a):
  """Terms in another order, and Horner's form of a polynomial."""
  found = terms(a)
  if len(found) > 1:
    yield 'order of a sum', join(found[::-1])
    yield 'order of a sum', join(found[1:] + found[:1])
    yield 'parentheses', f'({a})'
    yield 'sign of a sum', '-(' + join(
        [('+' if t[0] == '-' else '-') + t.lstrip('+- ') for t in found]) + ')'
  if len(found) > 2 and found[2][0] in '+-':
    yield 'parentheses', f'({join(found[:2])}) {" ".join(found[2:])}'
  square = re.fullmatch(r'([a-z])\^\{?2\}?\s*([-+])\s*(\d*)\1\s*([-+])\s*(\d+)',
                        a)
  if square:
    x, sign, b, other, c = square.groups()
    yield 'partly factored', f'{x}({x} {sign} {b or 1}) {other} {c}'
  product = re.fullmatch(r'\((\w)\s*([-+])\s*(\d+)\)\((\w)\s*([-+])\s*(\d+)\)',
                         a)
  if product and product[1] == product[4]:
    p, q = (int(product[i] + product[i + 1]) for i in (2, 5))
    x = product[1]
    yield 'expanded', f'{x}^2 + ({p + q}){x} + ({p * q})'
    yield 'order of factors', a[a.index(')') + 1:] + a[:a.index(')') + 1]


def products(a):
  """Factors in another order, and signs of a product."""
  two = re.fullmatch(
      rf'(\d+)\s*((?:\\sqrt{_GROUP})|\\pi|[a-z](?:\^\d)?)', a)
  if two:
    yield 'order of factors', rf'{two[2]} \cdot {two[1]}'
    yield 'product', rf'{two[1]} \times {two[2]}'
    yield 'product', f'{two[1]}*{two[2]}'
    yield 'product', rf'{two[1]}({two[2]})'
  if power := re.fullmatch(r'(\d+)\^\{?(\d)\}?', a):
    yield 'power', rf'{power[1]} \cdot {power[1]}^{{{int(power[2]) - 1}}}'


def roots(a):
  """Roots as powers, and factors moved under a root."""
  if re.search(r'\\sqrt\{\d+\}(?!\^)', a):
    yield 'root as a power', re.sub(
        r'\\sqrt\{(\d+)\}', r'{\1}^{1/2}' if a.startswith(r'\sqrt') else
        r'(\1)^{\\frac{1}{2}}', a)
  if one := re.search(r'(?<![\d.^}])(\d+)\s*\\sqrt\{(\d+)\}', a):
    yield 'factor under a root', (
        f'{a[:one.start()]}\\sqrt{{{int(one[1])**2 * int(one[2])}}}'
        f'{a[one.end():]}')
  if one := re.search(r'\\sqrt\{(\d+)\}', a):
    yield 'factor of a root', (f'{a[:one.start()]}\\frac{{\\sqrt{{'
                               f'{4 * int(one[1])}}}}}{{2}}{a[one.end():]}')


def equations(left, sign, right):
  """Sides exchanged, moved or multiplied."""
  yield 'sides exchanged', f'{right} {_FLIP[sign]} {left}'
  if re.search(r'[a-zA-Z]', re.sub(r'\\\w+', '', right)) or (
      right.strip() == '0'):
    if right.strip() != '0':
      yield 'one side', f'{left} - ({right}) {sign} 0'
    else:
      yield 'order of a sum', f'{join(terms(left)[::-1])} {sign} 0'
    yield 'multiplied', f'2({left}) {sign} 2({right})'
    if sign == '=':
      yield 'multiplied', f'-({left}) = -({right})'
  yield 'parentheses', f'{left} {sign} ({right})'


def intervals(a):
  """Intervals as inequalities, and unions in another order."""
  found = _INTERVAL.fullmatch(a)
  if r'\cup' in a:
    yield 'order of a union', r' \cup '.join(
        p.strip() for p in a.split(r'\cup')[::-1])
    yield 'membership', rf'x \in {a}'
  if not found or r'\infty' not in a and (found[1] + found[4] not in (
      '[)', '(]', '[]')):
    return
  low, high = found[2].strip(), found[3].strip()
  if re.search('[a-z]', re.sub(r'\\\w+', '', low + high)):
    return
  lower = r'\le' if found[1] == '[' else '<'
  upper = r'\le' if found[4] == ']' else '<'
  if 'infty' in low and 'infty' in high:
    return
  if 'infty' in low:
    condition = f'x {upper} {high}'
  elif 'infty' in high:
    condition = f'x {lower.replace("le", "ge").replace("<", ">")} {low}'
  else:
    condition = f'{low} {lower} x {upper} {high}'
  yield 'inequality', condition


def matrix_forms(a):
  """Other environments of a matrix."""
  if 'pmatrix' in a and a.endswith('}'):
    yield 'matrix', a.replace(' & ', '&').replace(r' \\ ', r'\\')
    yield 'matrix', re.sub(r'\\frac\{(\d+)\}\{(\d+)\}', r'\1/\2', a)
    columns = 'c' * (1 + a.split(r'\\')[0].count('&'))
    body = a.replace(r'\begin{pmatrix}', '').replace(r'\end{pmatrix}', '')
    yield 'matrix', (rf'\left(\begin{{array}}{{{columns}}}{body}'
                     r'\end{array}\right)')


def list_forms(a):
  """Lists in another order, in braces and in words."""
  found = parts(a)
  if len(found) < 2 or re.search(r'=|\\!|\{,|\\cup|\\text', a) or re.match(
      r'\(|\[|\\left|\\\{|\$|\d+(,\d{3})+$', a):
    return
  found = [p.strip() for p in found]
  yield 'order of a list', ', '.join(found[::-1])
  yield 'set of a list', r'\{' + ', '.join(found) + r'\}'
  yield 'list in words', r' \text{ or } '.join(found)


def units(a):
  """Units in other commands or left out; degrees, currency and percent."""
  unit = re.fullmatch(
      r'(.*\S)\s*\\(?:text|mbox|textnormal)\s*\{\s*([a-z ]+)\s*\}(\^[23])?', a)
  if unit and not re.search(r',|\\text', unit[1]):
    power = unit[3] or ''
    yield 'unit', rf'{unit[1]}\ \mathrm{{{unit[2]}}}{power}'
    yield 'unit', f'{unit[1]} {unit[2]}{power}'
    yield 'unit left out', unit[1]
  if re.fullmatch(r'[\d.]+\^\{?\\circ\}?', a):
    number = a.partition('^')[0]
    yield 'degrees', f'{number}°'
    yield 'degrees', rf'{number}^{{\circ}}'
    yield 'degrees', number
  if re.fullmatch(r'[\d.]+\\%', a):
    yield 'percent', a.replace('\\', '')
    yield 'percent', rf'{a[:-2]}\text{{ percent}}'
  if re.fullmatch(r'\\\$\s*[\d.]+', a):
    yield 'currency', a.replace(r'\$', '').strip()
    yield 'currency', a.replace(r'\$', '').strip() + r'\text{ dollars}'
  elif re.fullmatch(r'\d+', a):
    yield 'currency', rf'\${a}'
