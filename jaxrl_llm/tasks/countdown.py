"""Countdown: reach a target by a calculation that uses each number once.

The prompt `9,7,4>6:` asks for 6 from 9, 7 and 4; the response is a chain of
steps with their values, `9-7=2+4=6`. Every problem is made from such a chain,
so it has a solution. Kinds differ in how many numbers there are and how often
the warm start shows a solution, so that some start near pass rate 0 and some
near 1.
"""

import dataclasses
import math
import operator
import random
import re

from jaxrl_llm.rewards import Verdict
from jaxrl_llm.tasks import closest, Problem, problem_option
from jaxrl_llm.tokenizer import CharTokenizer, Tokenizer

_OPERATORS = {'+': operator.add, '-': operator.sub, '*': operator.mul}
_CHOICES, _WEIGHTS = '+-*', (9, 9, 1)
_NUMBER = '(?:0|[1-9][0-9]{0,3})'
_CHAIN = re.compile(f'{_NUMBER}(?:[-+*]{_NUMBER}={_NUMBER})+')
_STEP = re.compile('([-+*])([0-9]+)=([0-9]+)')


@dataclasses.dataclass(frozen=True)
class Kind:
  """A sort of problem.

  Attributes:
    numbers: how many are given.
    largest: they are drawn from 1 to this.
    highest: no value on the way is above this, nor is the target.
    lowest: the target is at least this.
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
    # Targets above what sums can reach: they need a product, which is rare
    # among the demonstrations.
    'product3': Kind(3, 9, 99, 28),
    'product4': Kind(4, 9, 99, 37),
}


@dataclasses.dataclass(frozen=True)
class Options:
  """Which problems there are; the tuples go with `kinds`.

  Attributes:
    kinds: names of KINDS.
    train: training problems of each kind.
    heldout: held-out problems of each kind.
    shown: problems of each kind for the demonstrations alone; where there are
      none of any kind, the training problems are demonstrated.
    solved: share of each kind's demonstrations that reach the target; the
      others are right in arithmetic only. It sets where RL starts.
    seed: of the problems and the demonstrations. The held-out problems depend
      on it and on `heldout`, not on `train`.
  """
  kinds: tuple[str, ...] = ('two', 'three', 'four', 'five')
  train: tuple[int, ...] = problem_option((210, 1400, 1000, 400))
  heldout: tuple[int, ...] = problem_option((48, 250, 170, 64))
  shown: tuple[int, ...] = ()
  solved: tuple[float, ...] = (1.0, 0.1, 0.1, 0.1)
  seed: int = 0

  def __post_init__(self):
    for kind in self.kinds:
      if kind not in KINDS:
        raise ValueError(
            f'countdown kind {kind!r} is not known.{closest(kind, KINDS)}')
    optional = ('shown',) if self.shown else ()
    for name in ('train', 'heldout', 'solved', *optional):
      values = getattr(self, name)
      if len(values) != len(self.kinds) or min(values, default=0) < 0:
        raise ValueError(
            f'countdown option {name}={values} must have one value of at '
            f'least 0 for each of kinds={self.kinds}.')
    if max(self.solved) > 1:
      raise ValueError(
          f'countdown option solved={self.solved} are shares: use 0 to 1.')
    if not sum(self.train) or not sum(self.heldout):
      raise ValueError(
          f'countdown needs problems: train={self.train} and '
          f'heldout={self.heldout} must not be all 0.')


def problem_id(numbers: tuple[int, ...], target: int) -> int:
  """A number for each (multiset of up to 6 numbers, target), below 2**31.

  The sorted numbers a_1 <= ... <= a_6 (0 where there are fewer) have rank
  sum_i C(a_i + i - 1, i) among all multisets, which does not depend on how
  large numbers may be; targets count within the rank. Six numbers up to 30
  and targets up to 999 fit.
  """
  padded = sorted((0,) * (6 - len(numbers)) + tuple(numbers))
  rank = sum(math.comb(a + i, i + 1) for i, a in enumerate(padded))
  return rank * 1000 + target


def chain(
    numbers: tuple[int, ...], highest: int, rng: random.Random,
) -> tuple[str, int]:
  """A random chain through all the numbers, and its value.

  The order is uniform; operators are drawn from + - * with weights 9, 9 and 1
  among those that keep the value within 0 to `highest`.

  Returns:
    The chain and its last value; ('', 0) if it came to a dead end.
  """
  value, *rest = rng.sample(numbers, len(numbers))
  text = str(value)
  for number in rest:
    values = [_OPERATORS[op](value, number) for op in _CHOICES]
    weights = [w * (0 <= v <= highest) for w, v in zip(_WEIGHTS, values)]
    if not any(weights):
      return '', 0
    i, = rng.choices(range(len(_CHOICES)), weights)
    value = values[i]
    text += f'{_CHOICES[i]}{number}={value}'
  return text, value


def _draw(name: str, rng: random.Random) -> Problem | None:
  """A random problem of a kind, or None where the draw has no chain to 1 or
  more."""
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
  """The problems of a split, none of them in `seen`, which grows."""
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
  """The task; see `tasks.Task`."""

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
    """1 if every step is right, each number is used once, and the last value
    is the target; else 0, with the first of these that failed as the kind."""
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
    """Demonstration `index` of a run: a problem to be shown, all kinds alike,
    and a response: its solution with the kind's probability `solved`, else a
    random chain through its numbers."""
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
    options: Options, tokenizer: Tokenizer | None = None) -> Countdown:
  """The task from its options; without a tokeniser, by characters."""
  return Countdown(options, tokenizer)
