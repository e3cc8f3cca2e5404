"""Programs of one line, written from examples: a small job in the sandbox.

  python -m jaxrl_llm.train --config=benchmarks/claims/expressions.py

A prompt has the values of a function at SHOWN, `3,5,7,13,19>`, and the response
is an expression in x, `x*2+3`. It runs in the sandbox of programs as

  def f(x):
    return x*2+3

with calls of f at 0 to 9, once for each text. The reward is the share of right
values, that of a function with other constants often above 0. The kinds of
problems are forms of expressions; how often the warm start writes the right one
sets their pass rates. Training problems, held-out problems and demonstrations
have no function in common.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import random
import re
import statistics
from typing import Annotated, Sequence

from jaxrl_llm.base.tokenizer import CharTokenizer, Tokenizer
from jaxrl_llm.configs.pkpo import arc_mini
from jaxrl_llm.rewards import sandbox, Verdict
from jaxrl_llm.tasks import Problem, sets

HEAD = 'def f(x):\n  return '
SHOWN = 0, 1, 2, 4, 9  # these tell all functions of FORMS apart
TESTED = range(10)
# The alphabet of responses has no word that could reach beyond this program.
_PRINT = f'''
for x in range({len(TESTED)}):
  try:
    print(f(x))
  except Exception as error:
    print(type(error).__name__)
'''
_LIMITS = sandbox.ProgramLimits(seconds=1.0, wall=5.0, memory=256 << 20)
# Forms with the ranges of their constants. A hard form is shown right in 5% of
# its demonstrations.
FORMS = {
    'line': ('x*{}+{}', range(2, 9), range(1, 31)),
    'cap': ('min(x*{},{})', range(2, 8), range(4, 41)),
    'floor': ('x//{}*{}+{}', range(2, 5), range(2, 6), range(0, 10)),
    'square': ('x*x*{}+{}', range(1, 4), range(0, 60)),
    'top': ('max(x*{},{})', range(1, 7), range(4, 41)),
    'remainder': ('x%{}*{}+{}', range(2, 5), range(2, 6), range(0, 10)),
}
HARD = 'square', 'top', 'remainder'
EASY_SHOWN, HARD_SHOWN = 0.6, 0.05


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of the task.

  Attributes:
    train: number of training problems of each form.
    heldout: number of held-out problems of each form.
    seed: seed of problems and demonstrations.
    known: JSON lines with what the programs of other runs printed, which gets
      those of this one; '' for none.
  """
  train: Annotated[int, '[1, inf)', 'problems'] = 40
  heldout: Annotated[int, '[1, inf)', 'problems'] = 20
  seed: int = 0
  known: str = ''


def value(expression: str, x: int) -> int:
  """Returns the value of an expression of FORMS."""
  if found := re.fullmatch(r'(min|max)\((.*),(.*)\)', expression):
    name, *parts = found.groups()
    return {'min': min, 'max': max}[name](value(part, x) for part in parts)
  return _apply(expression.replace('x', str(x)))


def _apply(text: str) -> int:
  """Computes sums of products, quotients and remainders, from the left."""
  total = 0
  for term in text.split('+'):
    first, *rest = re.split(r'(//|\*|%)', term)
    product = int(first)
    for sign, number in zip(rest[::2], map(int, rest[1::2])):
      product = {'*': product * number, '//': product // (number or 1),
                 '%': product % (number or 1)}[sign]
    total += product
  return total


def _expression(form: str, rng: random.Random) -> str:
  """Draws an expression of a form."""
  text, *ranges = FORMS[form]
  return text.format(*map(rng.choice, ranges))


@functools.cache
def _executor() -> sandbox.Executor:
  """Returns the sandbox."""
  return sandbox.make()


def _equal(printed: str, value: int) -> bool:
  """Returns whether a printed value is equal to a number."""
  try:
    return float(printed) == value
  except ValueError:
    return False


def _prompt(values: Sequence[int]) -> str:
  """Returns the prompt of a function, from its values at TESTED."""
  return ','.join(str(values[x]) for x in SHOWN) + '>'


class Expressions:
  """Task of expressions; see the module and `tasks.Task`."""

  def __init__(self, options: Options, tokenizer: Tokenizer | None = None):
    self.tokenizer = tokenizer or CharTokenizer('0123456789x+*/%(),>main-')
    self.stops = ()
    self._seen: set[tuple[int, ...]] = set()
    rng = random.Random(options.seed)
    self.heldout = self._fill(options.heldout, rng)
    self.train = self._fill(options.train, rng)
    self._known: dict[str, list[str]] = {}
    self._file = options.known and pathlib.Path(options.known)
    if self._file and self._file.exists():
      for line in self._file.read_text().splitlines():
        with contextlib.suppress(ValueError):  # a line that was cut off
          text, found = json.loads(line)
          self._known[text] = found

  def _draw(
      self, form: str, rng: random.Random) -> tuple[str, tuple[int, ...]]:
    """Draws an expression whose function is new, and its values."""
    while True:
      answer = _expression(form, rng)
      values = tuple(value(answer, x) for x in TESTED)
      if values not in self._seen:
        return answer, values

  def _fill(self, size: int, rng: random.Random) -> list[Problem]:
    """Draws problems of each form."""
    problems = []
    for form in FORMS:
      for _ in range(size):
        answer, values = self._draw(form, rng)
        self._seen.add(values)
        prompt = _prompt(values)
        problems.append(Problem(
            sets.number(f'{prompt} {answer}'), prompt, form, answer, values))
    return problems

  def ready(self) -> None:
    """Tries the sandbox; raises ValueError where it does not work."""
    _executor()

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Compares the printed values of a response with the problem's.

    The verdict's kind is correct, wrong, or the status of a program that did
    not end by itself.
    """
    del truncated  # a truncated response may still be an expression
    printed = self._printed(text)
    if len(printed) != len(TESTED):
      return Verdict(0.0, printed[0])
    right = statistics.fmean(map(_equal, printed, problem.info))
    return Verdict(right, 'correct' if right == 1 else 'wrong')

  def _printed(self, text: str) -> list[str]:
    """Returns what a program prints, or its status; each text runs once."""
    if text not in self._known:
      result = _executor().run(f'{HEAD}{text}{_PRINT}', limits=_LIMITS)
      found = result.stdout.decode().splitlines()
      if len(found) != len(TESTED):
        found = [result.status]
      if result.status == 'timeout':  # maybe of a busy machine: not noted
        return found
      self._known[text] = found
      if self._file:
        with self._file.open('a') as file:  # a short line is written at once
          file.write(json.dumps([text, found]) + '\n')
    return self._known[text]

  def demonstration(self, index: int, *, seed: int) -> tuple[Problem, str]:
    """Returns demonstration `index` of a run, a problem and a response.

    All forms are equally likely. The response is right with the form's
    probability, else another expression of any form.
    """
    rng = random.Random(f'{seed} {index}')
    form = rng.choice(list(FORMS))
    right, values = self._draw(form, rng)
    shown = HARD_SHOWN if form in HARD else EASY_SHOWN
    text = right if rng.random() < shown else _expression(
        rng.choice(list(FORMS)), rng)
    prompt = _prompt(values)
    return Problem(sets.number(prompt), prompt, form, right), text


_DEFAULTS = Options()


def create(
    tokenizer: Tokenizer | None = None,
    options: Options = _DEFAULTS) -> Expressions:
  """Makes the task."""
  return Expressions(options, tokenizer)


def get_config():
  """Returns the config: the model and the method of ARC-mini's."""
  c = arc_mini.get_config()
  c.task.name = __file__
  c.steps = 120
  c.max_prompt = 20
  c.max_response = 14
  c.model.vocab_size = 32
  c.sft.steps = 1500
  c.optimizer.learning_rate = 1e-3
  return c
