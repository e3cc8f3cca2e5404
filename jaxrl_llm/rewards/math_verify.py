r"""Judge of mathematical answers by the library math-verify.

It has the items and replies of `answers.judge`. What `take` finds in a response
is handed to the library in a box, and so is the reference; what stands around
it is not, so that the library does not search reasoning for an answer. CBS's
paper says that it compares "the response with the answer" (appendix D), and not
how the library is called; whole responses would let any formula count where
there is no box. Errors of the library mean that the answers are not equal.
"""

import importlib.util
import logging
from typing import Any

from jaxrl_llm import answers


def check() -> None:
  """Checks that the library is there.

  Raises:
    ValueError: it is not installed.
  """
  if importlib.util.find_spec('math_verify') is None:
    raise ValueError(
        'task.judge=math_verify needs the library math-verify: pip install '
        "'jaxrl_llm[math_verify]'.")


def judge(item: dict[str, Any]) -> dict[str, str]:
  """Judges a response; the function that a `pool.Pool` calls.

  Args:
    item: see `answers.judge`, without 'tolerance' and 'any_order'.

  Returns:
    See `answers.judge`. 'answer' is the form that the grammar of `answers`
    gives to the answer, or to the reference if they are equal.
  """
  found = answers.taken(item)
  if found is None:
    return {'kind': 'no_answer', 'answer': '', 'detail': ''}
  right = _equal(item['answer'], found)
  return {'kind': 'correct' if right else 'wrong', 'detail': found,
          'answer': answers.normal(item['answer'] if right else found)}


def _equal(reference: str, found: str) -> bool:
  """Asks the library, whose own time limits would end the pool's."""
  import math_verify
  latex = [math_verify.LatexExtractionConfig()]
  a, b = (math_verify.parse(
      rf'\boxed{{{text}}}', config, parsing_timeout=None)
          for text, config in (
              (reference, latex),
              (found, [*latex, math_verify.ExprExtractionConfig()])))
  return math_verify.verify(a, b, timeout_seconds=None)


def prepare() -> None:
  """Does the slow imports; called by `worker`."""
  # It warns that the time limits are off.
  logging.getLogger('math_verify').setLevel(logging.ERROR)
  _equal(r'\frac{\pi}2', r'\frac{\pi}{3}')
