"""Verifier for mathematical answers: compares their values, not their text.

The answer of a response (`answers.py`) is compared with the reference part by
part (`values.py`). Plain numbers are compared exactly. Expressions are read by
math-verify's grammar and evaluated with 30 digits, at several points if they
have variables, which refuses most wrong answers at once. math-verify decides
about the others. Run it in a `pool.Pool`, because some answers make sympy
compute forever.
"""

import fractions
import functools
import logging
import re
from typing import Any, Sequence

from jaxrl_llm.rewards import answers, spelling, values
from jaxrl_llm.rewards.values import Value

_LONGEST = 2000  # longer answers, in characters, are not read
# Precision that refuses, and precision that accepts, of which three digits may
# be lost.
_DIGITS, _SURE = 30, 300
_PROSE = 6  # words of so many spaces are hardly written again by the letter
_INTEGER = re.compile('0|-?[1-9][0-9]{0,17}')
_COMPLEX = re.compile(r'(?<![a-zA-Z\\])i(?![a-zA-Z])|\\(?:imath|Re|Im|det)\b')
# Words, which the grammar takes for factors.
_TEXT = re.compile(
    r'(?<!_)(?<!_\{)\\text(?![a-zA-Z])|(?<![a-zA-Z\\{])(?:[a-zA-Z]{5,}|'
    r'[a-zA-Z]{2,} [a-zA-Z]{2,})')
_MEASURED = re.compile(r'[^?]+')  # units that are compared
# The grammar drops primes and the direction of derivatives.
_DROPPED = re.compile(
    r"'|\\(?:prime|nabla)(?![a-zA-Z])|\\frac\s*\{\s*(?:d|\\partial)\b"
    r'|\\frac\s*\{\s*d\s*[a-zA-Z]?\s*\}\s*\{\s*d\s*[a-zA-Z]\s*\}')
_DEGREES = re.compile(r'([0-9]+(?:\.[0-9]+)?|[a-zA-Z])\s*\^\\circ')
# A left side whose value is asked for, such as m+n = 7.
_SUM = re.compile(r'[a-zA-Z](?:\s*\+\s*[a-zA-Z])+')


@functools.lru_cache(1 << 14)
def read(text: str) -> Value | None:
  """Reads an answer as it was written."""
  if (number := spelling.plain(text)) is not None:
    return Value('number', '', (number,))
  try:
    return values.read(spelling.clean(text))
  except RecursionError:  # brackets in brackets
    return None


def normal(text: str) -> str:
  """Returns a normal form that is equal for many spellings of an answer."""
  if _INTEGER.fullmatch(text):
    return text
  value = read(text)
  return values.form(value) if value else spelling.clean(text)


@functools.lru_cache(1 << 14)
def _parsed(text: str) -> Any:
  """Parses an expression by math-verify's grammar.

  The whole text must be an expression. Capital letters stay what they are, and
  decimals become fractions.

  Returns:
    An object of sympy, or None.
  """
  import latex2sympy2_extended as latex
  from latex2sympy2_extended.latex2sympy2 import ConversionConfig
  import sympy
  if (_TEXT.search(text) or _DROPPED.search(text)
      or any(text.count(a) != text.count(b) for a, b in ('{}', '()'))):
    return None
  text = _DEGREES.sub(r'(\1\\cdot\\frac{\\pi}{180})', text)
  config = latex.NormalizationConfig(
      units=False, malformed_operators=True, nits=True, boxed='none')
  try:
    found = latex.latex2sympy(
        latex.normalize_latex(text, config),
        is_real=True, normalization_config=None,
        conversion_config=ConversionConfig(lowercase_symbols=False))
    if isinstance(found, sympy.MatrixBase):
      found = found.as_immutable()
    imaginary = _COMPLEX.search(text)
    found = found.xreplace({
        x: sympy.Rational(str(x)) for x in found.atoms(sympy.Float)})
    found = found.xreplace({
        x: sympy.I if imaginary and x.name == 'i' else sympy.Symbol(
            x.name, real=True) for x in found.free_symbols})
    return None if found.has(sympy.nan, sympy.zoo) else found
  except Exception:  # of many types, from the grammar and from sympy
    return None


@functools.lru_cache(1 << 14)
def _verify(reference: str, found: str, tolerance: float) -> bool:
  """Compares two expressions."""
  import math_verify
  import sympy
  x, y = _parsed(reference), _parsed(found)
  if x is None or y is None:
    return False
  if isinstance(x, sympy.MatrixBase) and isinstance(y, sympy.MatrixBase):
    return x.shape == y.shape and all(
        _same(a, b, tolerance) for a, b in zip(x, y))
  if isinstance(x, sympy.Expr) and isinstance(y, sympy.Expr):
    return _same(x, y, tolerance)
  return math_verify.verify(
      x, y, timeout_seconds=None, allow_set_relation_comp=True)


def _same(x: Any, y: Any, tolerance: float) -> bool:
  """Compares two scalar expressions at some points, then by math-verify."""
  import math_verify
  import sympy
  names = sorted(x.free_symbols | y.free_symbols, key=str)
  for shift in (1, 2, 3) if names else (1,):
    # Values of no particular relation; the last point has negative ones too.
    point = {
        name: sympy.Rational(7919 * (i + shift) % 1009 + 13, 577)
        * (-1 if shift == 3 and i % 2 == 0 else 1)
        for i, name in enumerate(names)}
    try:
      size, error = _error(x.subs(point), y.subs(point), _DIGITS)
      if error is None:
        if not names:
          return _exactly(x, y)
      elif names or not error <= tolerance * size:
        return False
      else:
        return True
    except Exception:  # of many types: some functions have no value there
      continue
  return math_verify.verify(x, y, timeout_seconds=None)


def _error(x: Any, y: Any, digits: int) -> tuple[Any, Any]:
  """Returns the size of x and its distance from y, None for a rounding error.

  Raises:
    ValueError: one of them is no finite number.
  """
  import sympy
  a, b = x.evalf(digits), y.evalf(digits)
  if not all(v.is_number and v.is_finite for v in (a, b)):
    raise ValueError('not finite')
  error = abs(a - b)
  bound = max(abs(a), abs(b)) * sympy.Float(10, digits) ** (3 - digits)
  return abs(a), None if error <= bound else error


def _exactly(x: Any, y: Any) -> bool:
  """Compares two numbers that agree in their first digits."""
  x, y = x.doit(), y.doit()
  if x.is_Rational and y.is_Rational:
    return x == y
  return _error(x, y, _SURE)[1] is None


def _equal(a: Value, b: Value, tolerance: float, any_order: bool) -> bool:
  """Compares the value of a reference with one that was found."""
  def same(x, y):
    return _equal(x, y, tolerance, any_order)

  def ordered(xs, ys):
    return len(xs) == len(ys) and all(map(same, xs, ys))

  if 'equation' in (a.kind, b.kind):
    return _equations(a, b, same, tolerance)
  if a.kind == 'list' and b.kind in ('list', 'tuple'):
    if b.text not in ('', r'\pm', '()'):
      return False
    # Values of several variables have the order of their names.
    counts = {len({item.name for item in value.items} - {''})
              for value in (a, b)}
    if max(counts) > 1 and 0 in counts:
      return ordered(a.items, b.items)
    return _matched(a.items, b.items, same)
  if a.kind == 'tuple' and b.kind in ('list', 'tuple'):
    if b.kind == 'list' and a.text != '()' or b.kind == 'tuple' and (
        a.text != b.text or a.name and b.name and a.name != b.name):
      return False
    return ordered(a.items, b.items) or (
        any_order and _matched(a.items, b.items, same))
  if 'list' in (a.kind, b.kind):
    return False
  if (_MEASURED.fullmatch(a.unit) and _MEASURED.fullmatch(b.unit)
      and a.unit != b.unit and a.kind != 'word'):
    return False
  if 'word' in (a.kind, b.kind):
    return _words(a, b)
  if 'based' in (a.kind, b.kind):
    return _based(a, b)
  if a.kind == b.kind == 'number':
    return _numbers(a, b, tolerance)
  if re.fullmatch('[a-zA-Z]', a.text) and re.fullmatch('[a-zA-Z]', b.text):
    return a.text == b.text
  return _verify(_latex(a), _latex(b), tolerance)


def _matched(xs: Sequence[Value], ys: Sequence[Value], same) -> bool:
  """Tells whether two lists have equal elements in any order."""
  left = list(ys)
  for x in xs:
    for i, y in enumerate(left):
      if same(x, y):
        del left[i]
        break
    else:
      return False
  return not left


def _equations(a: Value, b: Value, same, tolerance: float) -> bool:
  """Compares an equation with another one or with a value.

  A chain such as x = 2 + 3 = 5 stands for its last member if the members after
  a name are equal; 6 = 5 stands for nothing.
  """
  def last(value, may_be_sum=False):
    if value.kind != 'equation':
      return value
    is_named = value.name or may_be_sum and _SUM.fullmatch(value.items[0].text)
    members = value.items[1 if is_named else 0:]
    if all(same(x, y) for x, y in zip(members, members[1:])):
      return members[-1]
    return None

  if a.kind == b.kind and not (a.name and a.name == b.name):
    # The grammar reads (x, y) = as it likes.
    return '(' not in (a.name[:1], b.name[:1]) and _verify(
        a.text, b.text, tolerance)
  if a.kind == 'equation' and not a.name:
    return False
  x, y = last(a), last(b, may_be_sum=True)
  return None not in (x, y) and same(x, y)


def _words(a: Value, b: Value) -> bool:
  """Compares words; for one in plain letters, whatever it was read as."""
  if a.kind == b.kind:
    return a.text == b.text and (not a.unit or a.unit == b.unit)
  x, y = (re.sub(r'[\s\\]', '', v.text) for v in (a, b))
  return x == y or len(x) > 1 and x.lower() == y.lower()


def _based(a: Value, b: Value) -> bool:
  """Compares numbers with a base; it may be missing where it is known."""
  if a.kind == b.kind:
    return (a.text, a.items) == (b.text, b.items)
  based, other = (a, b) if a.kind == 'based' else (b, a)
  digits = str(other.items[0]) if other.kind == 'number' else other.text
  if based is b and based.items[0] != '10':
    return False
  return based.text == digits.upper()


def _numbers(a: Value, b: Value, tolerance: float) -> bool:
  """Compares plain numbers; of a percentage, 2.5 and 0.025 are both right."""
  x, y = a.items[0], b.items[0]
  hundredth = fractions.Fraction(1, 100)
  pairs = [(x, y)]
  if (a.unit == '%') != (b.unit == '%'):
    pairs.append((x * hundredth, y) if a.unit == '%' else (x, y * hundredth))
  bound = fractions.Fraction(tolerance)
  return any(abs(v - w) <= bound * abs(v) for v, w in pairs)


def _latex(value: Value) -> str:
  """Writes a value in LaTeX, without its unit."""
  if value.kind == 'number':
    x = value.items[0]
    text = str(abs(x.numerator))
    if x.denominator > 1:
      text = rf'\frac{{{text}}}{{{x.denominator}}}'
    return '-' + text if x < 0 else text
  if value.kind == 'tuple':
    return value.text[0] + ','.join(map(_latex, value.items)) + value.text[1]
  return value.text


def _form(value: Value) -> str:
  """Returns one text for most values that are equal."""
  if value.kind == 'expression':
    parsed = _parsed(value.text)
    return values.form(value) if parsed is None else normal(str(parsed))
  if value.items and isinstance(value.items[0], Value):
    return values.form(value._replace(items=tuple(
        Value('expression', _form(item)) for item in value.items)))
  return values.form(value)


def compare(
    reference: str, found: str, tolerance: float = 0.0,
    any_order: bool = False) -> dict[str, str]:
  """Compares an answer with the reference.

  Args:
    reference: the correct answer, LaTeX or plain.
    found: the answer of the response.
    tolerance: largest error of a number, relative to the reference.
    any_order: whether the parts of a tuple may come in another order.

  Returns:
    A dictionary with 'kind' ('correct' or 'wrong') and 'answer', a form that
    most equal answers have in common.
  """
  # Checked before `read`, which caches its arguments.
  if len(found) > max(_LONGEST, 2 * len(reference)):
    return {'kind': 'wrong', 'answer': found, 'detail': 'too long to be parsed'}
  if not tolerance and _INTEGER.fullmatch(reference) and _INTEGER.fullmatch(
      found):
    return {'kind': 'correct' if reference == found else 'wrong',
            'answer': found}
  form = spelling.light(reference)
  if form == spelling.light(found):
    return {'kind': 'correct', 'answer': form}
  a, b = read(reference), read(found)
  if a and b and (a == b or _equal(a, b, tolerance, any_order)):
    return {'kind': 'correct', 'answer': form}
  return {'kind': 'wrong', 'answer': _form(b) if b else spelling.clean(found)}


_ORDINARY = re.compile(
    r'(?:[-+*/^|!=.\s0-9a-zA-Z(){}]|_[0-9a-z]|[0-9]:(?=[0-9])|'
    r'\\sqrt\[[0-9]\]|\\(?:pi|frac|sqrt|infty|cdot|times|sin|cos|tan|cot|sec|'
    r'csc|ln|alpha|beta|gamma|theta|lambda|emptyset)(?![a-zA-Z])|'
    r'\\mathbb\{[RZNQC]\}|'
    r'\\begin\{[bp]matrix\}[-0-9a-z/&{}\\\s]*\\end\{[bp]matrix\})*+')

# A last operator, a word, or a division by 0.
_SUSPECT = re.compile(
    r'[-+*/^]\s*$|(?<![a-zA-Z\\{])[a-zA-Z]{3,}|'
    r'(?:/\s*|\}\s*\{\s*)0(?![0-9.])')


def readable(text: str, parse: bool = True) -> bool:
  """Returns whether a reference can be compared by its value.

  Args:
    text: the reference.
    parse: whether to parse expressions, which may take forever. Otherwise only
      those count that have no symbols but ordinary ones.
  """
  def known(value):
    if value.kind == 'expression':
      return _parsed(value.text) is not None if parse else (
          _ORDINARY.fullmatch(value.text) is not None
          and not _SUSPECT.search(value.text)
          and all(value.text.count(a) == value.text.count(b)
                  for a, b in ('{}', '()')))
    return all(known(v) for v in value.items if isinstance(v, Value)) and (
        value.kind != 'word' or value.text.count(' ') < _PROSE)

  value = read(text) if len(text) <= _LONGEST else None
  return value is not None and known(value)


def check(item: dict[str, str]) -> dict[str, str]:
  """Checks a reference, of 'answer'; a function for a `pool.Pool`."""
  return {'kind': 'readable' if readable(item['answer']) else 'unreadable'}


def same(item: dict[str, str]) -> dict[str, str]:
  """Compares two references, of 'answer' and 'found'; for a `pool.Pool`."""
  return compare(item['answer'], item['found'])


def judge(item: dict[str, Any]) -> dict[str, str]:
  """Judges a response; the function that a `pool.Pool` calls.

  Args:
    item: dictionary with 'answer' (the reference), 'response', 'take' (see
      `answers.answer`), and optionally 'tolerance' and 'any_order' (see
      `compare`).

  Returns:
    A dictionary with 'kind' ('correct', 'wrong' or 'no_answer'), 'answer' as
    from `compare` ('' for none), and 'detail', the answer as it was written.
  """
  found = answers.answer(item['response'], item['take'])
  if found is None:
    return {'kind': 'no_answer', 'answer': '', 'detail': ''}
  return {'detail': found, **compare(
      item['answer'], found, item.get('tolerance', 0.0),
      item.get('any_order', False))}


def prepare() -> None:
  """Does the slow imports and fills the parser's tables; called by `worker`."""
  logging.getLogger('math_verify').setLevel(logging.ERROR)
  compare(r'\frac{\pi}2', r'\frac{\pi}{3}')
  compare(r'x+1', r'1+x')
