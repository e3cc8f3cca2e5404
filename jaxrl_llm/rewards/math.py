"""Is the answer of a response the right one? Mathematically, not by the letter.

What a response answers is found here: its last box, or its last number.
Whether it equals the reference is math-verify's to say, where a comparison of
normal forms does not settle it. To be run in a `pool.Pool`: sympy can be made
to compute for ever.
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
# A minus right behind a letter, a digit or a bracket subtracts.
_NUMBER = re.compile(
    r'(?:(?<![\w)\]}])[-+−])?'
    r'(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)'
    r'(?:/[0-9]+)?')
_PLAIN = re.compile(r'[-+]?[0-9]+(?:\.[0-9]+)?')
_LONGEST = 2000  # characters of an answer that are worth parsing


def boxed(text: str) -> str | None:
  r"""The contents of the last \boxed{...} whose braces close; None if none.

  Of nested ones, the inner. `\boxed 5`, without braces, is 5.
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
  """The last number, such as -1,234.5 or 3/4, without its commas."""
  found = None
  for match in _NUMBER.finditer(text):
    found = match[0]
  return found and found.replace(',', '').replace('−', '-')


def answer(text: str, take: str) -> str | None:
  """What a response answers: its last box, its last number, or either.

  Args:
    text: the response.
    take: one of `TAKES`; 'either' is the number only where there is no box.

  Returns:
    The answer, None if there is none.
  """
  found = boxed(text) if take != 'number' else None
  if found is None and take != 'boxed':
    found = last_number(text)
  return found


def normal(text: str) -> str:
  """A form that many ways to write the same have in common."""
  text = text.strip().strip('$').strip().rstrip('.')
  text = re.sub(r'\\(?:left|right)(?![a-z])|\\!', '', text)
  text = re.sub(r'\\[dt]frac(?![a-z])', r'\\frac', text)
  # Spaces go after the commas, since 12, 345 are two numbers; and not between
  # letters or digits, since 1 1/2 is not 11/2.
  if re.fullmatch(r'[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?', text):
    text = text.replace(',', '')
  text = re.sub(r'(?<!\w) | (?!\w)', '', re.sub(r'\s+', ' ', text))
  if _PLAIN.fullmatch(text) and len(text) < 300:
    return str(fractions.Fraction(text))
  return text


@functools.lru_cache(1 << 14)
def _parsed(text: str) -> list[Any]:
  """What math-verify makes of an answer."""
  import math_verify
  return math_verify.parse(
      fr'\boxed{{{text}}}'.replace('°', r'^\circ'),
      [math_verify.LatexExtractionConfig(boxed_match_priority=0),
       math_verify.ExprExtractionConfig()], parsing_timeout=None)


@functools.lru_cache(1 << 14)
def _verify(reference: str, found: str) -> tuple[bool, str]:
  """Whether math-verify finds them equal, and how it reads the second."""
  import math_verify
  x, y = _parsed(reference), _parsed(found)
  equal = math_verify.verify(x, y, timeout_seconds=None)
  return equal, str(y[0]) if y and not equal else found


def compare(reference: str, found: str) -> dict[str, str]:
  """Whether an answer equals the reference.

  Args:
    reference: the right answer, LaTeX or plain.
    found: the answer.

  Returns:
    'kind', 'correct' or 'wrong', and 'answer', a form that equal answers
    have in common, as far as that is easily said.
  """
  a, b = normal(reference), normal(found)
  if a == b:
    return {'kind': 'correct', 'answer': a}
  if _integer(a) and _integer(b):
    return {'kind': 'wrong', 'answer': b}
  # Before `_verify`, which keeps what it is asked.
  if len(found) > max(_LONGEST, 2 * len(reference)):
    return {'kind': 'wrong', 'answer': b, 'detail': 'too long to be parsed'}
  equal, read = _verify(reference, found)
  if equal:
    return {'kind': 'correct', 'answer': a}
  return {'kind': 'wrong', 'answer': normal(read)}


def _integer(text: str) -> bool:
  return re.fullmatch('-?[0-9]+', text) is not None


def judge(item: dict[str, str]) -> dict[str, str]:
  """Judges a response, for a `pool.Pool`.

  Args:
    item: 'answer', the reference; 'response'; and 'take', see `answer`.

  Returns:
    'kind': 'correct', 'wrong' or 'no_answer'; 'answer' as `compare` gives it
    ('' for none); 'detail', what was found.
  """
  found = answer(item['response'], item['take'])
  if found is None:
    return {'kind': 'no_answer', 'answer': '', 'detail': ''}
  return {'detail': found, **compare(item['answer'], found)}


def prepare() -> None:
  """For `worker`: imports what is slow to import, and parses once.

  The parser makes its tables then.
  """
  logging.getLogger('math_verify').setLevel(logging.ERROR)
  compare(r'\frac12', r'\frac{1}{3}')
