r"""Respellings and edits of answers: rules by construction.

A respelling has the same value, so a judge has to accept it; `algebra.py` has
those of expressions. An edit has another value: a digit, a sign, an order, a
base, or words that say so.
"""

import fractions
import re
from typing import Iterator

_FRACTION = re.compile(r'\\[dt]?frac\{(\d+)\}\{(\d+)\}')
_WORD = re.compile(r'\\text\{([^{}]*)\}')


def respell(a: str) -> Iterator[tuple[str, str]]:
  """Yields (rule, text) for the ways to write an answer that apply to it."""
  whole = re.fullmatch(r'-?[1-9]\d*', a)
  if whole:
    yield 'decimal', a + '.0'
    yield 'final point', a + '.'
    yield 'assignment', 'x = ' + a
    yield 'colour', rf'\color{{red}}{{{a}}}'
    yield 'bold', rf'\textbf{{({a})}}' if a[0] != '-' else rf'\mathbf{{{a}}}'
    digits = a.lstrip('-')
    if len(digits) > 3:
      for mark in (',', '{,}', r',\!', r'\,'):
        yield 'groups of digits', a[:len(a) - len(digits)] + re.sub(
            r'(?<=\d)(?=(?:\d{3})+$)', lambda _, mark=mark: mark, digits)
      power = len(digits) - 1
      mantissa = f'{a[:len(a) - power]}.{a[-power:]}'
      yield 'power of ten', rf'{mantissa} \times 10^{{{power}}}'
      yield 'e-notation', f'{mantissa}e{power}'
    yield 'fraction', rf'\frac{{{2 * int(a)}}}{{2}}'
    yield 'fraction', f'{a}/1'
    yield 'zeros', f'{a}.000'
    yield 'unit', rf'{a}\text{{ units}}'
    if a[0] != '-':
      yield 'sign', '+' + a
  if a.startswith('-'):
    yield 'unicode', '−' + a[1:]
  if one := re.fullmatch(r'(-?)\\frac\{(\d+)\}\{(\d+)\}', a):
    top, low = int(one[2]), int(one[3])
    yield 'slash', f'{one[1]}{top}/{low}'
    yield 'not reduced', rf'{one[1]}\frac{{{3 * top}}}{{{3 * low}}}'
    if 10**6 % low == 0:
      value = fractions.Fraction(top, low) * 10**6
      yield 'decimal', f'{one[1]}{int(value) / 10**6:.6f}'
  if r'\frac{' in a:
    yield 'dfrac', a.replace(r'\frac{', r'\dfrac{')
    if short := re.sub(r'\\frac\{(\d)\}\{(\d)\}', r'\\frac\1\2', a):
      if short != a:
        yield 'short fraction', short
  if re.search(r'\\sqrt\{\d+\}', a):
    yield 'unicode', re.sub(r'\\sqrt\{(\d+)\}', r'√\1', a)
  if r'\pi' in a:
    yield 'unicode', a.replace(r'\pi', 'π')
  if a[0] in '([' and a[-1] in ')]':
    yield 'brackets', rf'\left{a[:-1]}\right{a[-1]}'.replace(
        r'\left\left', r'\left').replace(r'\right\right', r'\right')
    yield 'brackets', rf'\bigl{a[:-1]}\bigr{a[-1]}' if 'left' not in a else a
  if re.fullmatch(r'[-\d]+(?:,\s?[-\d]+)+', a) and not re.search(r',\d{3}', a):
    parts = re.split(r',\s?', a)
    yield 'order of a list', ', '.join(parts[::-1])
    yield 'list in words', r' \text{ and } '.join(parts)
  if word := _WORD.fullmatch(a):
    yield 'word', rf'\textbf{{{word[1]}}}'
    yield 'word', rf'\mathrm{{{word[1]}}}'
    yield 'word', word[1]
  if r'^\circ' in a and a.endswith('circ'):
    yield 'degrees', a.replace(r'^\circ', '°')
    yield 'degrees', a.replace(r'^\circ', r'\text{ degrees}')
  if re.search(r' [-+] ', a):
    yield 'spaces', re.sub(r' ([-+]) ', r'\1', a)
  if a.endswith(r'\%') and '=' not in a:
    yield 'percent', a[:-2]
    yield 'spaces', re.sub(r' ([-+]) ', r'\\;\1\\;', a)
  if r'\sqrt{' in a:
    yield 'root', re.sub(r'\\sqrt\{(\d)\}', r'\\sqrt \1', a)
    yield 'product', re.sub(r'(?<=\d) ?\\sqrt', r' \\cdot \\sqrt', a)
  if 'pmatrix' in a:
    yield 'matrix', a.replace('pmatrix', 'bmatrix')
  if re.search(r'\^\d', a):
    yield 'power', re.sub(r'\^(\d)', r'^{\1}', a)
  if re.search(r'(?<![\d.])0\.\d', a):
    yield 'no zero', re.sub(r'(?<![\d.])0\.(?=\d)', '.', a)
  if re.fullmatch(r'-?\d*\.\d+', a):
    yield 'zeros', a + '00'
    yield 'fraction', str(fractions.Fraction(a))
  if sum_ := re.fullmatch(r'(\w+)(?: ?)\+(?: ?)([\w\\{}]+)', a):
    yield 'order of a sum', f'{sum_[2]} + {sum_[1]}'
  if re.fullmatch(r'[(\[][^()\[\]]*\\infty[^()\[\]]*[)\]]', a):
    yield 'membership', r'x \in ' + a
    yield 'unicode', a.replace(r'\infty', '∞')
  yield 'braces', f'{{{a}}}'
  yield 'display', rf'\displaystyle {a}'
  yield 'parentheses', rf'\( {a} \)'
  yield 'dollars', f'${a}$'
  yield 'spaces', rf'\, {a} \,'


def edit(a: str) -> Iterator[tuple[str, str]]:
  """Yields (rule, text) for changes after which an answer is another one."""
  whole = re.fullmatch(r'-?[1-9]\d*', a)
  if whole:
    n = int(a)
    yield 'digit', str(n + 1 if n % 10 < 9 else n - 1)
    yield 'sign', str(-n)
    yield 'chain', f'{n + 1} = {n}'
    yield 'arrow', rf'{n + 1} \to {n}'
    yield 'inequality', rf'\ge {n}'
    yield 'scale', rf'{n}\text{{ million}}'
    yield 'text', rf'{n}\text{{ is wrong}}'
    yield 'small change', f'{n}.0000001'
    yield 'power of ten', rf'{n} \times 10^{{-40}}'
    yield 'more', f'{n}, {n + 1}'
  if one := re.fullmatch(r'(-?)\\frac\{(\d+)\}\{(\d+)\}', a):
    top, low = int(one[2]), int(one[3])
    yield 'digit', rf'{one[1]}\frac{{{top + 1}}}{{{low}}}'
    if top != low:
      yield 'upside down', rf'{one[1]}\frac{{{low}}}{{{top}}}' if top else '1'
    places = 9 if top else 1
    value = fractions.Fraction(top, low)
    near = f'{float(value):.{places}f}'
    if fractions.Fraction(near) != value:
      yield 'rounded', one[1] + near
  pair = re.fullmatch(r'\((-?\w+),\s?(-?\w+)\)', a)
  if pair and pair[1] != pair[2]:
    yield 'order of a tuple', f'({pair[2]},{pair[1]})'
    yield 'order of a tuple', f'{pair[2]}, {pair[1]}'
    yield 'brackets', f'[{pair[1]},{pair[2]}]'
  if based := re.fullmatch(r'([0-7]+)_\{?(\d)\}?', a):
    yield 'base', f'{based[1]}_{(int(based[2]) + 2) % 10}'
  if re.fullmatch(r'[a-zA-Z]', a):
    yield 'case', a.swapcase()
  if re.fullmatch(r'(?:[-\d]+,\s?)+[-\d]+', a) and not re.search(r',\d{3}', a):
    yield 'less', a.rpartition(',')[0]
    yield 'dots', re.sub(r',', r',\\ldots,', a, count=1)
  if re.search(r'[\d}]$', a) and not whole and '_' not in a:
    yield 'more', a + ' + 1'
    yield 'text', a + r'\text{ is wrong}'
