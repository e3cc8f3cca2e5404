"""Verifier for mathematical answers: compares their values, not their text.

The answer of a response is its last box or its last number. It is compared with
the reference, first in a normal form and then, if this is not enough, by
math-verify. Run it in a `pool.Pool`, because some answers make sympy compute
forever.
"""

import fractions
import functools
import logging
import re
from typing import Any

TAKES = ('boxed', 'number', 'either')

_TOKEN = re.compile(
    r'(?P<box>\\(?:boxed|fbox)(?![a-zA-Z])\s*(?P<brace>\{)?)|\\.|'
    r'(?P<open>\{)|(?P<close>\})', re.DOTALL)
_BARE = re.compile(r'\s*([^\s${}\\]+)')
# A minus directly after a letter, a digit or a bracket is a subtraction.
_NUMBER = re.compile(
    r'(?:(?<![\w)\]}])[-+−])?'
    r'(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)'
    r'(?:/[0-9]+)?')
_PLAIN = re.compile(r'[-+]?[0-9]+(?:\.[0-9]+)?')
_LONGEST = 2000  # longer answers, in characters, are not parsed


def boxed(text: str) -> str | None:
  r"""Returns the content of the last complete \boxed{...}, or None.

  If boxes are nested, the inner one counts. `\boxed 5`, without braces, gives
  '5'.
  """
  found, start, stack = None, -1, []
  for token in _TOKEN.finditer(text):
    if token['box'] and not token['brace']:
      if bare := _BARE.match(text, token.end()):
        found, start = bare[1].rstrip('.,;'), token.end()
    elif token['box'] or token['open']:
      stack.append(token.end() if token['box'] else -1)
    elif token['close'] and stack and (begin := stack.pop()) > start:
      found, start = text[begin:token.start()], begin
  return found and found.strip() or None


def last_number(text: str) -> str | None:
  """Returns the last number, such as -1,234.5 or 3/4, without its commas."""
  found = None
  for match in _NUMBER.finditer(text):
    found = match[0]
  return found and found.replace(',', '').replace('−', '-')


def answer(text: str, take: str) -> str | None:
  """Extracts the answer of a response: its last box, or its last number.

  Args:
    text: the response.
    take: one of `TAKES`; 'either' takes the number only if there is no box.

  Returns:
    The answer, or None.
  """
  found = boxed(text) if take != 'number' else None
  if found is None and take != 'boxed':
    found = last_number(text)
  return found


def normal(text: str) -> str:
  """Returns a normal form that is equal for many spellings of an answer."""
  text = text.strip().strip('$').strip().rstrip('.')
  text = re.sub(r'\\(?:left|right)(?![a-z])|\\!', '', text)
  text = re.sub(r'\\[dt]frac(?![a-z])', r'\\frac', text)
  # Commas are removed before spaces, since '12, 345' is two numbers. Spaces
  # between letters or digits stay, since '1 1/2' is not '11/2'.
  if re.fullmatch(r'[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?', text):
    text = text.replace(',', '')
  text = re.sub(r'(?<!\w) | (?!\w)', '', re.sub(r'\s+', ' ', text))
  if _PLAIN.fullmatch(text) and len(text) < 300:
    return str(fractions.Fraction(text))
  return text


@functools.lru_cache(1 << 14)
def _parsed(text: str) -> list[Any]:
  """Parses an answer with math-verify."""
  import math_verify
  return math_verify.parse(
      fr'\boxed{{{text}}}'.replace('°', r'^\circ'),
      [math_verify.LatexExtractionConfig(boxed_match_priority=0),
       math_verify.ExprExtractionConfig()], parsing_timeout=None)


@functools.lru_cache(1 << 14)
def _verify(reference: str, found: str) -> tuple[bool, str]:
  """Compares two answers with math-verify.

  Returns:
    Whether they are equal, and the second as math-verify reads it.
  """
  import math_verify
  x, y = _parsed(reference), _parsed(found)
  equal = math_verify.verify(x, y, timeout_seconds=None)
  return equal, str(y[0]) if y and not equal else found


def compare(reference: str, found: str) -> dict[str, str]:
  """Compares an answer with the reference.

  Args:
    reference: the correct answer, LaTeX or plain.
    found: the answer of the response.

  Returns:
    A dictionary with 'kind' ('correct' or 'wrong') and 'answer', a form that
    most equal answers have in common.
  """
  a, b = normal(reference), normal(found)
  if a == b:
    return {'kind': 'correct', 'answer': a}
  if _integer(a) and _integer(b):
    return {'kind': 'wrong', 'answer': b}
  # Checked before `_verify`, which caches its arguments.
  if len(found) > max(_LONGEST, 2 * len(reference)):
    return {'kind': 'wrong', 'answer': b, 'detail': 'too long to be parsed'}
  equal, read = _verify(reference, found)
  if equal:
    return {'kind': 'correct', 'answer': a}
  return {'kind': 'wrong', 'answer': normal(read)}


def _integer(text: str) -> bool:
  return re.fullmatch('-?[0-9]+', text) is not None


def judge(item: dict[str, str]) -> dict[str, str]:
  """Judges a response; the function that a `pool.Pool` calls.

  Args:
    item: dictionary with 'answer' (the reference), 'response', and 'take' (see
      `answer`).

  Returns:
    A dictionary with 'kind' ('correct', 'wrong' or 'no_answer'), 'answer' as
    from `compare` ('' for none), and 'detail', the answer as it was written.
  """
  found = answer(item['response'], item['take'])
  if found is None:
    return {'kind': 'no_answer', 'answer': '', 'detail': ''}
  return {'detail': found, **compare(item['answer'], found)}


def prepare() -> None:
  """Does the slow imports and fills the parser's tables; called by `worker`."""
  logging.getLogger('math_verify').setLevel(logging.ERROR)
  compare(r'\frac12', r'\frac{1}{3}')
