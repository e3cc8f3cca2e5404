r"""Verifier for mathematical answers: compares their meaning, not their text.

The answer of a response (`responses.py`) and the reference are read whole by
one grammar (`grammar.py`) into shapes: numbers, expressions, tuples, lists,
intervals, sets, matrices, equations and other relations, quantities with units,
words. Shapes are compared part by part (`equality.py`), expressions by their
values at points (`points.py`). What the grammar does not cover equals only the
same text.
"""

import fractions
import functools
import re
from typing import Any

from jaxrl_llm.answers import evaluate, grammar, responses, tokens, units
from jaxrl_llm.answers.equality import Comparison
from jaxrl_llm.answers.grammar import Node, number, Unread
from jaxrl_llm.answers.responses import (
  boxed,
  final_part,
  has_box,
  last_number,
  TAGS,
  with_opened,
)
from jaxrl_llm.answers.shapes import form, shaped
from jaxrl_llm.answers.tokens import spelled

__all__ = (
    'boxed', 'compare', 'final_part', 'has_box', 'judge', 'last_number',
    'normal', 'prepare', 'readable', 'spelled', 'TAGS', 'taken',
    'with_opened')

_LONGEST = 2000  # longer answers, in characters, are not read
_PLAIN = re.compile(
    r'[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?')
_SAYS = re.compile(
    r'^\s*(?:\\text\s*\{)?\s*(?:the )?(?:final )?answer(?: is:?|\s*[:=])'
    r'\s*\}?\s*', re.IGNORECASE)
_PROSE = 4  # words of so many spaces are hardly written again by the letter
_COMPUTED = frozenset('+ * / ^ neg root log call'.split())
# In capitals it joins spellings; in small letters it lists values.
_OR = re.compile(r'\s*\\(?:text|mathrm|mbox)\s*\{\s*OR\s*\}\s*|\s+OR\s+')
# The label of a choice, alone or before its value: \textbf{(C)}\ 5, (C) 5.
_WRAPPED = (r'\\(?:text|math)[a-z]*\s*\{\s*(?:\(([A-J])\)|([A-J])[).:])\s*\}')
_CHOICE = re.compile(
    _WRAPPED + r'(?:\s|~|:|\\[ ,;:!]|\\q?quad\b)*|\(([A-J])\)(?:\s+|$)')
_WRAPPED_CHOICE = re.compile(_WRAPPED)
_LETTER = re.compile(
    r'\s*(?:\\(?:text|math)[a-z]*\s*\{)?\s*\(?([A-J])\)?\s*\}?')
# What an equation may say the value of; x and 2x are none.
_NAMING = re.compile(r"""
    (?:[PE]|Var|Cov|\\Pr|\\math[a-z]+\{?[PE]\}?|[fghFG]\^\{-1\}|
       \\(?:text|operatorname)\{[^{}]*\})\s*[(\[|].*[)\]|] |
    [nN]\((?:[A-Z'|,]|\\(?:c[au]p|mid|bar|overline|\{|\})|[{}])+\) |
    \|(?:[^|]*[A-Z][^|]*|[zw]|\\vec[^|]*)\| |
    \\lfloor.*\\rfloor | \\lceil.*\\rceil | m\\angle.* | [A-Z]\^\{?(?:T|-1)\}? |
    \\(?:sin|cos|tan|cot|sec|csc)\^?(?:\\[a-zA-Z]+|[^a-z])* | \\sigma\^\{?2\}? |
    \\text\{[^{}]*[a-z]{2}[^{}]*\}.* | \\frac\{[A-Z]{2}\}\{[A-Z]{2}\} |
    \\vec.*\\cdot\\vec.* | \\frac\{(?:d|\\partial).*\}\{(?:d[a-z]|\\partial).* |
    \\(?:sum|prod|i+nt|lim|det)(?![a-z]).*""", re.VERBOSE)


def _value(text: str) -> tuple[str, str]:
  """Returns the name and the value of an equation such as P(A) = 1/2.

  The name is '' if there is none, '=' if it is no name, as in 2x = 10.
  """
  depth = 0
  for sign in re.finditer(r'\\.|[{}()\[\]=]', text):
    depth += (sign[0] in '{([') - (sign[0] in '})]')
    if sign[0] == '=' and not depth:
      name = re.sub(r'\\left|\\right|\\,|\s', '', text[:sign.start()])
      return name if _NAMING.fullmatch(name) else '=', text[sign.end():]
  return '', text


@functools.lru_cache(1 << 14)
def read(
    text: str, *, bare_units: bool = False, any_thing: bool = False,
    factors: frozenset[str] = frozenset()) -> Node | None:
  """Reads an answer; None if the grammar does not cover it whole.

  See `grammar.read` for the arguments.
  """
  try:
    if words := units.words(tokens.trimmed(text), Node):
      return number(words.args[0]) if words.op == 'number' else words
    return shaped(grammar.read(
        text, bare_units=bare_units, any_thing=any_thing, factors=factors))
  except (Unread, RecursionError):
    return None


def normal(text: str) -> str:
  """Returns a form that is equal for many spellings of an answer."""
  if (plain := _plain(text)) is not None:
    return str(plain)
  value = read(text)
  return form(value) if value else spelled(text)


def _plain(text: str) -> fractions.Fraction | None:
  """Returns the value of an integer or decimal, with or without commas."""
  if len(text) < 300 and _PLAIN.fullmatch(text):
    return fractions.Fraction(text.replace(',', ''))
  return None


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
  # Checked before it is read, which caches its arguments.
  if len(found) > max(_LONGEST, 2 * len(reference)):
    return {'kind': 'wrong', 'answer': found, 'detail': 'too long to be read'}
  x, y = _plain(reference), _plain(found)
  if x is not None and y is not None:
    right = abs(x - y) <= fractions.Fraction(tolerance) * abs(x)
  else:
    right = equal(reference, found, tolerance, any_order)
  return {'kind': 'correct' if right else 'wrong',
          'answer': normal(reference if right else found)}


def equal(
    reference: str, found: str, tolerance: float, any_order: bool) -> bool:
  """Tells whether an answer is the reference; see `compare`."""
  found = _SAYS.sub('', found)
  if tokens.spelled(reference) == tokens.spelled(found) != '':
    return True
  first, *others = _OR.split(reference) if 'OR' in reference else [reference]
  if others and all(equal(first, x, 0.0, False) for x in others) and equal(
      first, found, tolerance, any_order):
    return True
  try:
    return _same(reference, found, Comparison(tolerance, any_order)) or (
        _same_choice(reference, found, tolerance, any_order))
  except RecursionError:
    return False


def _same_choice(
    reference: str, found: str, tolerance: float, any_order: bool) -> bool:
  """Compares answers of which one at least has the label of a choice."""
  (letter, value), (other, said) = map(_choice, (reference, found))
  if not (letter and value or other and said):
    return False
  if letter and other and (letter != other or not value or not said):
    return letter == other
  # A letter in plain brackets may be a factor.
  if not letter and not _WRAPPED_CHOICE.match(found):
    return False
  return bool(value and said) and equal(value, said, tolerance, any_order)


def _choice(text: str) -> tuple[str, str]:
  """Returns the letter of a choice and its value, '' for what is not there."""
  text = text.strip()
  if alone := _LETTER.fullmatch(text):
    return alone[1], ''
  label = _CHOICE.match(text)
  if not label:
    return '', text
  value = text[label.end():]
  letter = next(filter(None, label.groups()))
  # Two choices are none.
  return ('', '') if _CHOICE.search(value) else (letter, value)


def _same(reference: str, found: str, comparison: Comparison) -> bool:
  a = read(
      reference, any_thing=True, factors=grammar.factors(reference, found))
  b = read(found, factors=grammar.factors(found, reference))
  if a and b and comparison.equal(a, b):
    return True
  if a and ', ' in reference and tokens.comma_free(found) != found:
    return _same(reference, found.replace(',', ', '), comparison)
  # '6 m/s' is a quantity beside one, and otherwise six times m/s.
  if a and b and a.op != b.op and 'quantity' in (a.op, b.op):
    a, b = (x if x.op == 'quantity' else read(text, bare_units=True)
            for x, text in ((a, reference), (b, found)))
    if a and b and a.op == b.op:
      return a.args[1] == b.args[1] and comparison.same(a, b)
  (name, x), (other, y) = (
      _value(tokens.trimmed(text)) for text in (reference, found))
  is_other = name and other and tokens.spelled(name) != tokens.spelled(other)
  if '=' in (name, other) or name == other == '' or is_other:
    return False
  return _same(x, y, comparison)


def readable(text: str) -> bool:
  """Returns whether a reference can be compared by its meaning.

  Prose and an expression whose values are not known match by the letter only.
  """
  if len(text) > _LONGEST:
    return False
  name, rest = _value(tokens.trimmed(text))
  value = read(text if name == '=' else rest, any_thing=True)
  if value is None or any(
      part.op == 'word' and part.args[0].count(' ') >= _PROSE
      for part in evaluate.parts(value)):
    return False
  try:
    return value.op not in _COMPUTED or Comparison(0.0, False).same(
        value, Node('*', (number(1), value)))
  except RecursionError:
    return False


def taken(item: dict[str, Any]) -> str | None:
  """Returns the answer of a response, or None; see `judge`."""
  return responses.answer(
      item['response'], item['take'], item.get('tags', TAGS))


def judge(item: dict[str, Any]) -> dict[str, str]:
  """Judges a response; the function that a `pool.Pool` calls.

  Args:
    item: dictionary with 'answer' (the reference), 'response', 'take' (see
      `responses.answer`), and optionally 'tags' (see `responses.final_part`),
      'tolerance' and 'any_order' (see `compare`).

  Returns:
    A dictionary with 'kind' ('correct', 'wrong' or 'no_answer'), 'answer' as
    from `compare` ('' for none), and 'detail', the answer as it was written.
  """
  text = taken(item)
  if text is None:
    return {'kind': 'no_answer', 'answer': '', 'detail': ''}
  return {'detail': text, **compare(
      item['answer'], text, item.get('tolerance', 0.0),
      item.get('any_order', False))}


def prepare() -> None:
  """Does the slow imports; called by `worker`."""
  compare(r'\frac{\pi}2', r'\frac{\pi}{3}')
