r"""Reference answers of a problem file: extraction, and checks at loading.

An answer that is missing stops the loading. An answer that no response could
match, since it cannot be read, is a warning with its file and line.
"""

import re
from typing import Sequence

from absl import logging

from jaxrl_llm import answers
from jaxrl_llm.tasks import problem_files

# A number, optionally with a currency before it and a unit after it.
_AMOUNT = re.compile(
    r'[$€£]?\s*([-+−]?[\d,]*\.?\d+)(?:\s*%|\s+[a-zA-Z]{2,})?\.?')
_SHOWN = 3  # unreadable references that a warning lists
_SHORT = 200  # characters; longer answers are not empty

Located = tuple[str, str]  # where an answer is, for messages; and the answer


def reference(text: str) -> str:
  """Extracts the bare answer from the answer field of a row.

  This is the content of the last box, else the text after ####, else the whole
  text. For an amount after ####, as in GSM8K, it is the number alone.
  """
  found = answers.boxed(text)
  if found is None and '####' in text:
    found = text.rpartition('####')[2].strip()
    if amount := _AMOUNT.fullmatch(found):
      found = answers.last_number(amount[1])
  return (found or text).strip()


def checked(text: str) -> str:
  """Extracts the bare answer and checks that there is one.

  Raises:
    ValueError: a box or the text after #### is empty, or a box has no end.
  """
  if answers.has_box(text):
    missing = answers.boxed(text) is None
  else:
    missing = '####' in text and not text.rpartition('####')[2].strip()
  found = reference(text)
  if missing or len(found) < _SHORT and not re.search(
      r'[^\s{}$]', re.sub(r'\\text\s*\{\s*\}', '', answers.spelled(found))):
    raise ValueError(
        f'the answer {text[-40:]!r} has an empty or unclosed box or is empty: '
        'complete it, or leave the problem out.')
  return found


def warn_of_unreadable(references: Sequence[Located]) -> None:
  """Warns of references that cannot be read."""
  bad = [found for found in references if not answers.readable(found[1])]
  if bad:
    shown = '; '.join(
        f'{where}: {text[:60]!r}' for where, text in bad[:_SHOWN])
    logging.warning(
        'Answers that cannot be read as mathematics match only responses that '
        'repeat them by the letter: %d of %d (%s%s).', len(bad),
        len(references), shown, ', ...' if len(bad) > _SHOWN else '')


def refuse_contradictions(pairs: Sequence[tuple[Located, Located]]) -> None:
  """Checks that the two answers of each pair, to one problem, are equal.

  Raises:
    ValueError: pairs differ; see `problem_files.refuse`.
  """
  faults = []
  for (where, first), (again, second) in pairs:
    if answers.compare(first, second)['kind'] == 'wrong':
      faults.append((again, (
          f'the answer {second[:40]!r} differs from {first[:40]!r} in '
          f'{where}, which has the same problem: remove one of them.')))
  problem_files.refuse(faults)
