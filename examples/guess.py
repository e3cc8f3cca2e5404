"""A game of several turns: find a hidden letter of a list.

The prompt is a list of different letters in any order, such as 'qfbmzkd:'. In
each turn the model names a letter. The environment answers '<' if the hidden
letter stands earlier in the list, '>' if later, '?' if the list does not have
the letter named. With the guesses of a binary search every letter is found:
three for seven letters. The seed of the trajectory hides the letter, so that
nothing can be learned by heart.

`task.name=jaxrl_llm.examples.guess` chooses it in any folder.
"""

import dataclasses
import random
from typing import Annotated, Any, Mapping, NamedTuple

from jaxrl_llm.base.tokenizer import CharTokenizer, Tokenizer
from jaxrl_llm.environments import Limits
from jaxrl_llm.environments.turns import Turns
from jaxrl_llm.tasks import Problem, sets

_Count = Annotated[int, '[1, inf)', 'problems']
LETTERS = 'abcdefghijklmnopqrstuvwxyz'


class State(NamedTuple):
  """State of a game.

  Attributes:
    letters: the list.
    hidden: place of the hidden letter.
    left: guesses left.
  """
  letters: str
  hidden: int
  left: int


def reset(problem: Mapping[str, Any], seed: int) -> tuple[State, str]:
  """Begins a game with the `letters` of the problem and its `guesses`."""
  letters = problem['letters']
  hidden = random.Random(f'guess {seed}').randrange(len(letters))
  return State(letters, hidden, problem['guesses']), f'{letters}:'


def step(state: State, text: str) -> tuple[State, str | None, float]:
  """Answers a guess; the reward is 1 for the hidden letter."""
  letters, hidden, left = state
  if text == letters[hidden]:
    return state, None, 1.0
  if left <= 1:
    return state, None, 0.0
  said = '?'
  if len(text) == 1 and text in letters:
    said = '<' if hidden < letters.index(text) else '>'
  return State(letters, hidden, left - 1), said, 0.0


@dataclasses.dataclass(frozen=True)
class Options:
  """Options for the choice of lists.

  Attributes:
    train: number of training problems.
    heldout: number of held-out problems; their lists are others.
    letters: letters of a list, at most 26.
    max_turns: guesses of a game.
    solved: share of the demonstrations that are binary searches; the others
      are played at random. Sets the pass rate at the RL start.
    seed: seed of the lists. Held-out lists depend on seed and heldout, not on
      train.
  """
  train: _Count = 2000
  heldout: _Count = 512
  letters: Annotated[int, '[2, 26]', 'problems'] = 7
  max_turns: _Count = 3
  solved: Annotated[float, '[0, 1]'] = 0.2
  seed: int = 0


_DEFAULTS = Options()


class Guess:
  """Task of the game; see `tasks.Task`."""

  def __init__(self, options: Options, tokenizer: Tokenizer | None = None):
    self.options = options
    self.tokenizer = tokenizer or CharTokenizer(f'{LETTERS}:<>?')
    self.turns = Turns(
        __file__, Limits(options.max_turns, 2, 1), markup=False, timeout=10.0,
        workers=1)
    self.close = self.turns.close  # ends the worker process
    rng = random.Random(f'guess lists {options.seed}')
    lists = dict.fromkeys(
        ''.join(rng.sample(LETTERS, options.letters))
        for _ in range(options.heldout + options.train))
    problems = [
        Problem(sets.number(letters), f'{letters}:', 'list',
                info={'letters': letters, 'guesses': options.max_turns},
                text=f'{letters}:')
        for letters in lists]
    self.heldout = problems[:options.heldout]
    self.train = problems[options.heldout:]

  def demonstration(
      self, index: int, *, seed: int) -> tuple[Problem, list[tuple[str, str]]]:
    """Returns game `index` of a run: a problem, and its turns."""
    rng = random.Random(f'guess {seed} {index}')
    problem = rng.choice(self.train)
    state, _ = reset(problem.info, rng.randrange(1 << 31))
    search = rng.random() < self.options.solved
    low, high, turns = 0, len(state.letters) - 1, []
    said: str | None = ''
    while said is not None:
      place = (low + high) // 2 if search else rng.randrange(high + 1)
      text = state.letters[place]
      state, said, _ = step(state, text)
      if search and said == '<':
        high = place - 1
      elif search:
        low = place + 1
      turns.append((text, said or ''))
    return problem, turns

def create(
    tokenizer: Tokenizer | None = None, options: Options = _DEFAULTS) -> Guess:
  """Makes the task; by default its tokeniser has one token per character."""
  return Guess(options, tokenizer)
