"""Calculations of two steps, with a calculator to call or without.

The prompt is a calculation such as '47*12+35='. A turn that begins with '?',
such as '?47*12', calls the calculator. It is answered by the result, or by '!'
if what follows is no calculation. A turn is too short for the whole of the
prompt, so two calls are needed. A turn without '?' is the answer.

`task.name=jaxrl_llm.examples.calculations` chooses it in any folder.
"""

import dataclasses
import random
from typing import Annotated, Any, Mapping

from jaxrl_llm.base.tokenizer import CharTokenizer, Tokenizer
from jaxrl_llm.environments import Limits
from jaxrl_llm.environments.turns import Turns
from jaxrl_llm.examples.calculator import calculator
from jaxrl_llm.tasks import Problem, sets

_Count = Annotated[int, '[1, inf)', 'problems']
ALPHABET = '0123456789+-*=?!'
# Tokens of a turn: '?9801+99' and a stop token; one more would be needed for
# '?47*12+35'.
_TURN = len('?9801+99') + 1


def reset(problem: Mapping[str, Any], seed: int) -> tuple[Any, str]:
  """Begins with the `text` of the problem; the seed changes nothing."""
  del seed
  return problem, f'{problem["text"]}='


def step(state: Mapping[str, Any], text: str) -> tuple[Any, str | None, float]:
  """Answers a call, or judges the answer: the reward is 1 if it is right."""
  if not (state['tool'] and text.startswith('?')):
    return state, None, float(text == calculator(state['text']))
  try:
    return state, calculator(text[1:]), 0.0
  except ValueError:
    return state, '!', 0.0


@dataclasses.dataclass(frozen=True)
class Options:
  """Options for the choice of calculations.

  Attributes:
    train: number of training problems.
    heldout: number of held-out problems; their calculations are others.
    tool: whether the calculator can be called.
    max_turns: most turns of a trajectory.
    solved: share of the demonstrations that end with the right answer; the
      others stop too early or give any number. Sets the pass rate at the RL
      start.
    seed: seed of the calculations. Held-out calculations depend on seed and
      heldout, not on train.
  """
  train: _Count = 4000
  heldout: _Count = 512
  tool: bool = True
  max_turns: _Count = 3
  solved: Annotated[float, '[0, 1]'] = 0.2
  seed: int = 0


_DEFAULTS = Options()


def _drawn(rng: random.Random) -> str:
  """Draws a calculation."""
  a, b, c = (rng.randint(10, 99) for _ in range(3))
  return f'{a}*{b}{rng.choice("+-")}{c}'


class Calculations:
  """Task of the calculations; see `tasks.Task`."""

  def __init__(self, options: Options, tokenizer: Tokenizer | None = None):
    self.options = options
    self.tokenizer = tokenizer or CharTokenizer(ALPHABET)
    self.turns = Turns(
        __file__, Limits(options.max_turns, _TURN, _TURN), markup=False,
        timeout=10.0, workers=1)
    self.close = self.turns.close  # ends the worker process
    rng = random.Random(f'calculations {options.seed}')
    texts: dict[str, None] = {}
    while len(texts) < options.heldout + options.train:
      texts[_drawn(rng)] = None
    problems = [
        Problem(sets.number(text), f'{text}=', text[5],
                calculator(text), {'text': text, 'tool': options.tool},
                f'{text}=')
        for text in texts]
    self.heldout = problems[:options.heldout]
    self.train = problems[options.heldout:]

  def demonstration(
      self, index: int, *, seed: int) -> tuple[Problem, list[tuple[str, str]]]:
    """Returns trajectory `index` of a run: a problem, and its turns."""
    rng = random.Random(f'calculations {seed} {index}')
    problem = rng.choice(self.train)
    right = rng.random() < self.options.solved
    if not self.options.tool:
      return problem, [(
          problem.answer if right else str(rng.randint(1, 9900)), '')]
    product, rest = problem.info['text'][:5], problem.info['text'][5:]
    calls = [product, calculator(product) + rest]
    values = [*map(calculator, calls)]
    made = 2 if right else rng.randrange(2)
    answer = values[made - 1] if made else str(rng.randint(1, 9900))
    return problem, [
        *((f'?{call}', value) for call, value in zip(
            calls[:made], values)), (answer, '')]

def create(
    tokenizer: Tokenizer | None = None,
    options: Options = _DEFAULTS) -> Calculations:
  """Makes the task; by default its tokeniser has one token per character."""
  return Calculations(options, tokenizer)
