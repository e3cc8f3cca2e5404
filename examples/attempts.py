"""Countdown with attempts: responses of very different lengths.

The problems are those of tasks/countdown.py. A response has any number of
chains, with a semicolon between them, and the last one counts:
`9-7=2*4=8;9+4=13-7=6` solves `9,7,4>6:`. A demonstration draws chains until one
reaches the target or it gives up, so that most are short and some fill all of
max_response.

`task.name=jaxrl_llm.examples.attempts` chooses it in any folder.
"""

import dataclasses
import random
from typing import Annotated

from jaxrl_llm.base.tokenizer import CharTokenizer, Tokenizer
from jaxrl_llm.rewards import Verdict
from jaxrl_llm.tasks import countdown, Problem


@dataclasses.dataclass(frozen=True)
class Options(countdown.Options):
  """Options of Countdown, and of its demonstrations.

  Attributes:
    patience: chance of another chain after one that misses the target.
    longest: characters of a demonstration, at most.
  """
  patience: Annotated[float, '[0, 1]'] = 0.8
  longest: Annotated[int, '[1, inf)'] = 96


class Attempts(countdown.Countdown):
  """Task of Countdown problems with attempts; see `tasks.Task`."""

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Judges the last chain of a response, see `Countdown.verify`."""
    return super().verify(problem, text.rpartition(';')[2], truncated)

  def demonstration(self, index: int, *, seed: int) -> tuple[Problem, str]:
    """Returns demonstration `index` of a run, a problem and a response."""
    rng = random.Random(f'{seed} {index}')
    kind = rng.choice(list(self._shown))
    problem = rng.choice(self._shown[kind])
    numbers, target = problem.info
    highest, text = countdown.KINDS[kind].highest, ''
    while True:
      chain, value = countdown.chain(numbers, highest, rng)
      if not chain:
        continue
      if text and len(f'{text};{chain}') > self.options.longest:
        return problem, text
      text = f'{text};{chain}' if text else chain
      if value == target or rng.random() > self.options.patience:
        return problem, text


def create(
    tokenizer: Tokenizer | None = None,
    options: Options = Options()) -> Attempts:
  """Makes the task; by default its tokeniser has one token per character."""
  return Attempts(options, tokenizer or CharTokenizer('0123456789+-*=,>:;'))
