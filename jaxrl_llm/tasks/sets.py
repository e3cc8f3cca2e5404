"""Sets of problems: each problem once, with an id that no other one has."""

import collections
import dataclasses
import hashlib
import json
from typing import Any, Callable, Hashable, Iterable, Sequence
import zlib

from absl import logging

Problem = Any  # a `tasks.Problem`; that module imports this one
Key = Callable[[Problem], Hashable]


def number(text: str) -> int:
  """Returns the id of a problem by its text, 0 <= id < 2**31."""
  return zlib.crc32(text.encode('utf8', 'replace')) >> 1


def digest(value: Any) -> bytes:
  """Returns a hash of the columns of a row, whatever their order."""
  text = json.dumps(value, sort_keys=True, default=repr)
  return hashlib.sha256(text.encode()).digest()


def by_seed(seed: int) -> Callable[[Problem], bytes]:
  """Returns the rank of problems for `split`: an order that a seed draws."""
  return lambda problem: hashlib.sha256(
      f'{seed} {problem.id}'.encode()).digest()


def once(
    problems: Sequence[Problem], key: Key, sources: Sequence[str],
) -> list[Problem]:
  """Returns problems without those that are repeated, and counts these.

  Args:
    problems: any number.
    key: problem -> what is the same for a problem that is repeated.
    sources: their files, for the warning.
  """
  found: dict[Hashable, Problem] = {}
  for problem in problems:
    found.setdefault(key(problem), problem)
  if len(found) < len(problems):
    logging.warning(
        'Left out of %s: %d of %d problems, which are repeated.',
        ', '.join(sources), len(problems) - len(found), len(problems))
  return [*found.values()]


def distinct(
    problems: Sequence[Problem], others: Iterable[Problem] = (),
) -> Sequence[Problem]:
  """Returns problems with ids that no other one has; itself if they have them.

  A problem keeps its id if it is the only one with it. Otherwise its id follows
  from its content, so that it is the same in any order of the problems, and
  nearly always with others beside them.

  Args:
    problems: any number.
    others: problems that keep their ids.
  """
  count = collections.Counter(problem.id for problem in problems)
  taken = {problem.id for problem in others}
  clash = sorted(
      (hashlib.sha256(repr((p.shown, p.answer, p.info)).encode(
          'utf8', 'replace')).hexdigest(), p.prompt, row)
      for row, p in enumerate(problems) if count[p.id] > 1 or p.id in taken)
  if not clash:
    return problems
  taken |= count.keys()
  found = [*problems]
  for content, _, row in clash:
    tries = 0
    while (ident := number(f'{content} {tries}')) in taken:
      tries += 1
    taken.add(ident)
    found[row] = dataclasses.replace(found[row], id=ident)
  return found


def split(
    train: Sequence[Problem], heldout: Sequence[Problem], count: int, *,
    key: Key, rank: Callable[[Problem], Any], origin: str,
) -> tuple[Sequence[Problem], Sequence[Problem]]:
  """Returns training and held-out problems with ids; none is in both.

  Args:
    train: problems, each of them once.
    heldout: problems, each of them once. If there are none, the first `count`
      training problems by rank are held out.
    count: task.heldout_count.
    key: problem -> what is the same for a problem that is in both sets.
    rank: problem -> its place. It goes by the id, so that a few more problems
      change few held-out ones.
    origin: of the training problems, for the error.

  Raises:
    ValueError: all training problems are held out.
  """
  if heldout:
    known = {key(problem) for problem in heldout}
    held = distinct(heldout)
    left = distinct([p for p in train if key(p) not in known], held)
    fix = 'take problems out of the held-out ones, or add others to train on'
  else:
    ranked = sorted(train := distinct(train), key=rank)
    held, known = ranked[:count], {problem.id for problem in ranked[:count]}
    left = [problem for problem in train if problem.id not in known]
    fix = (f'lower task.heldout_count={count}, or set task.heldout to other '
           'files')
  if train and not left:
    raise ValueError(f'All problems of {origin} are held out: {fix}.')
  _warn_of_prompts(left, held, origin)
  return left, held


def _warn_of_prompts(
    train: Sequence[Problem], heldout: Sequence[Problem], origin: str,
) -> None:
  """Warns of prompts in both sets, unless all problems have one prompt."""
  held = {problem.prompt for problem in heldout}
  alike = sum(problem.prompt in held for problem in train)
  if alike and len({*held, *(problem.prompt for problem in train)}) > 1:
    logging.warning(
        '%d of the %d training problems of %s have the prompt of a held-out '
        'problem, and differ from it in other columns: they are trained on.',
        alike, len(train), origin)
