"""Countdown: reach a target by a calculation that uses each number once.

The prompt `9,7,4>6:` asks for 6 from 9, 7 and 4. The response is a chain of
steps with their values: `9-7=2+4=6`. Every problem is made from such a chain,
so it has a solution. The kinds of problems differ in the count of numbers and
in how often the warm start shows a solution: some start near pass rate 0 and
some near 1.
"""

import dataclasses
import math
import operator
import random
import re
from typing import Annotated

from jaxrl_llm.base.tokenizer import CharTokenizer, Tokenizer
from jaxrl_llm.rewards import Verdict
from jaxrl_llm.tasks import closest, Problem

_OPERATORS = {'+': operator.add, '-': operator.sub, '*': operator.mul}
_WEIGHTS = 9, 9, 1  # of the operators
_NUMBER = '(?:0|[1-9][0-9]{0,3})'
_CHAIN = re.compile(f'{_NUMBER}(?:[-+*]{_NUMBER}={_NUMBER})+')
_STEP = re.compile('([-+*])([0-9]+)=([0-9]+)')


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of problem.

  Attributes:
    numbers: count of the given numbers.
    largest: upper end of the range, from 1, that the numbers are drawn from.
    highest: upper bound on the target and on every value of the chain.
    lowest: lower bound on the target.
  """
  numbers: int
  largest: int
  highest: int
  lowest: int = 1


KINDS = {
    'two': Kind(2, 15, 40),
    'three': Kind(3, 15, 40),
    'four': Kind(4, 9, 40),
    'five': Kind(5, 9, 40),
    # No sum reaches these targets. They need a product, which is rare in the
    # demonstrations.
    'product3': Kind(3, 9, 99, 28),
    'product4': Kind(4, 9, 99, 37),
}


@dataclasses.dataclass(frozen=True)
class Options:
  """Options for the choice of problems; the tuples are aligned with `kinds`.

  Attributes:
    kinds: kinds of problems; two, three, four, five, product3 or product4.
    train: number of training problems of each kind.
    heldout: number of held-out problems of each kind.
    shown: number of extra problems of each kind for demonstrations only. If all
      are 0, demonstrations use the training problems.
    solved: share of each kind's demonstrations that reach the target; the
      others have only correct arithmetic. Sets the pass rates at the RL start.
    seed: seed of problems and demonstrations. Held-out problems depend on seed
      and heldout, not on train.
  """
  kinds: tuple[str, ...] = ('two', 'three', 'four', 'five')
  train: Annotated[tuple[int, ...], 'problems'] = (210, 1400, 1000, 400)
  heldout: Annotated[tuple[int, ...], 'problems'] = (48, 250, 170, 64)
  shown: tuple[int, ...] = ()
  solved: tuple[float, ...] = (1.0, 0.1, 0.1, 0.1)
  seed: int = 0

  def __post_init__(self):
    for kind in self.kinds:
      if kind not in KINDS:
        raise ValueError(
            f'countdown kind {kind!r} is not known.{closest(kind, KINDS)}')
    if len({*self.kinds}) < len(self.kinds):
      raise ValueError(
          f'countdown option kinds={self.kinds} has a kind twice: leave one of '
          'them out.')
    optional = ('shown',) if self.shown else ()
    for name in ('train', 'heldout', 'solved', *optional):
      values = getattr(self, name)
      if len(values) != len(self.kinds) or min(values, default=0) < 0:
        raise ValueError(
            f'countdown option {name}={values} must have one value of at '
            f'least 0 for each of kinds={self.kinds}.')
    if max(self.solved) > 1:
      raise ValueError(
          f'countdown option solved={self.solved} must have shares from 0 to '
          '1.')
    if not sum(self.train) or not sum(self.heldout):
      raise ValueError(
          f'countdown needs problems: train={self.train} and '
          f'heldout={self.heldout} must not be all 0.')


_DEFAULTS = Options()


def problem_id(numbers: tuple[int, ...], target: int) -> int:
  """Returns a unique id below 2**31 for a multiset of numbers and a target.

  The sorted numbers a_1 <= ... <= a_6, padded with 0, have the rank
  sum_i C(a_i + i - 1, i) among all multisets. This rank does not depend on the
  range of the numbers. The id is 1000 * rank + target, which is below 2**31 for
  up to six numbers up to 30 and targets up to 999.
  """
  padded = sorted((0,) * (6 - len(numbers)) + tuple(numbers))
  rank = sum(math.comb(a + i, i + 1) for i, a in enumerate(padded))
  return rank * 1000 + target


def chain(
    numbers: tuple[int, ...], highest: int, rng: random.Random,
) -> tuple[str, int]:
  """Draws a random chain that uses all the numbers.

  The order of the numbers is uniform. Each operator is drawn from + - * with
  weights 9, 9 and 1, among those that keep the value within 0 to `highest`.

  Returns:
    The chain and its last value; ('', 0) if no operator was possible.
  """
  value, *rest = rng.sample(numbers, len(numbers))
  text = str(value)
  for number in rest:
    steps = [(op, apply(value, number)) for op, apply in _OPERATORS.items()]
    weights = [w * (0 <= v <= highest) for w, (_, v) in zip(_WEIGHTS, steps)]
    if not any(weights):
      return '', 0
    (op, value), = rng.choices(steps, weights)
    text += f'{op}{number}={value}'
  return text, value


def _draw(name: str, rng: random.Random) -> Problem | None:
  """Draws a random problem of a kind.

  Returns None if the drawn chain fails or its value is below `lowest`.
  """
  kind = KINDS[name]
  numbers = tuple(sorted(
      (rng.randint(1, kind.largest) for _ in range(kind.numbers)),
      reverse=True))
  answer, target = chain(numbers, kind.highest, rng)
  if target < kind.lowest:
    return None
  prompt = f'{",".join(map(str, numbers))}>{target}:'
  return Problem(problem_id(numbers, target), prompt, name, answer,
                 (numbers, target))


def _fill(options: Options, split: str, seen: set[int]) -> list[Problem]:
  """Draws the problems of a split that are not in `seen`; extends `seen`."""
  problems = []
  for name, size in zip(options.kinds, getattr(options, split)):
    rng = random.Random(f'{options.seed} {split} {name}')
    end, misses = len(problems) + size, 0
    while len(problems) < end:
      problem = _draw(name, rng)
      if problem is not None and problem.id not in seen:
        seen.add(problem.id)
        problems.append(problem)
        misses = 0
      elif (misses := misses + 1) > 10_000:
        raise ValueError(
            f'countdown kind {name!r} has too few distinct problems for '
            f'{split}={size}: lower it.')
  return problems


class Countdown:
  """Task of Countdown problems; see `tasks.Task`."""

  def __init__(self, options: Options, tokenizer: Tokenizer | None = None):
    self.options = options
    self.tokenizer = tokenizer or CharTokenizer('0123456789+-*=,>:')
    seen = set()
    self.heldout = _fill(options, 'heldout', seen)
    self.train = _fill(options, 'train', seen)
    self._solved = dict(zip(options.kinds, options.solved))
    shown = self.train
    if any(options.shown):
      shown = _fill(options, 'shown', seen)
    self._shown = {
        kind: [p for p in shown if p.kind == kind] for kind in options.kinds
        if any(p.kind == kind for p in shown)}

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Judges a response: reward 1 if all checks pass, else 0.

    The checks: every step is correct, each number is used once, and the last
    value is the target. The verdict's kind names the first check that failed.
    """
    numbers, target = problem.info
    if truncated:
      return Verdict(0.0, 'truncated')
    if not _CHAIN.fullmatch(text):
      return Verdict(0.0, 'malformed')
    value = int(re.match('[0-9]+', text)[0])
    used = [value]
    for op, number, result in _STEP.findall(text):
      used.append(int(number))
      value = _OPERATORS[op](value, int(number))
      if value != int(result):
        return Verdict(0.0, 'wrong_step')
    if sorted(used) != sorted(numbers):
      return Verdict(0.0, 'wrong_numbers')
    if value != target:
      return Verdict(0.0, 'wrong_target')
    return Verdict(1.0, 'correct')

  def demonstration(self, index: int, *, seed: int) -> tuple[Problem, str]:
    """Returns demonstration `index` of a run, a problem and a response.

    All kinds are equally likely. The response is the problem's solution with
    the kind's probability `solved`, else a random chain of its numbers.
    """
    rng = random.Random(f'{seed} {index}')
    kind = rng.choice(list(self._shown))
    problem = rng.choice(self._shown[kind])
    if rng.random() < self._solved[kind]:
      return problem, problem.answer
    numbers, _ = problem.info
    while not (text := chain(numbers, KINDS[kind].highest, rng)[0]):
      pass
    return problem, text


def create(
    tokenizer: Tokenizer | None = None,
    options: Options = _DEFAULTS) -> Countdown:
  """Makes the task; by default its tokeniser has one token per character."""
  return Countdown(options, tokenizer)
