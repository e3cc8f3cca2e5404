"""Rewards by a function of the user, as TRL's trainers call it.

  def reward(completions, answer, **kwargs):
    return [float(a in text) for text, a in zip(completions, answer)]

The function is called with keywords only, once for many responses, and returns
one number or None for each. It gets `prompts`, the problems as they stand in
the file; `completions`, the responses; and every other column of the problem
file under its name. Each is a list with one element per response. A function
without **kwargs gets only what it names.
"""

import inspect
import math
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

from jaxrl_llm import rewards
from jaxrl_llm.plugs import modules
from jaxrl_llm.rewards import plain, Verdict, VerifierError

TEXTS = ('prompts', 'completions')


class Row(NamedTuple):
  """Fields of a problem that the reward function receives; `Problem.info`.

  Attributes:
    problem: the problem as it stands in the file.
    answer: the reference answer; '' if there is none.
    columns: the file's other columns, the answer's among them.
  """
  problem: str
  answer: str
  columns: Mapping[str, Any]


class Reward:
  """Reward function of the user.

  Attributes:
    name: its name in the config, for messages.
    columns: names of the columns that it gets; `declare` adds to them.
  """

  def __init__(self, name: str):
    """Imports the function; see `modules.function` for the errors."""
    self.name, self.columns = name, {}
    self._function: Callable[..., Any] = modules.function(name)
    try:
      parameters = inspect.signature(self._function).parameters.values()
    except ValueError:  # some functions written in C have none
      self._named, self._required = None, ()
      return
    for p in parameters:
      if p.kind == p.POSITIONAL_ONLY and p.default is p.empty:
        raise ValueError(
            f"task.reward={name} takes {p.name} by its position only: remove "
            "the '/' from its parameters.")
    named = [p for p in parameters
             if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    self._required = [p.name for p in named if p.default is p.empty]
    takes_all = any(p.kind == p.VAR_KEYWORD for p in parameters)
    self._named = None if takes_all else {p.name for p in named}

  def declare(self, rows: Iterable[Row]) -> None:
    """Notes the columns of the problem files.

    Raises:
      ValueError: the function needs a column that no row has.
    """
    rows = list(rows)
    self.columns.update(dict.fromkeys(c for row in rows for c in row.columns))
    known = [*TEXTS, *self.columns]
    for name in self._required if rows else ():
      if name not in known:
        raise ValueError(
            f'task.reward={self.name} needs {name!r}, which is no column of '
            'the problem files: rename the parameter, or give it a default.'
            f'{modules.closest(name, known)}')

  def judge(
      self, rows: Sequence[Row], completions: Sequence[str]) -> list[Verdict]:
    """Calls the function once.

    Args:
      rows: the problem of each response.
      completions: the responses.

    Returns:
      One verdict per response. The kind of a reward is 'correct' from 1 on,
      'wrong' up to 0, and 'partial' between them; a reward that is not finite
      is an 'error', and None is 'skipped'. The last two are not valid. If the
      function raises an error, all are 'error'.

    Raises:
      VerifierError: the function does not return one number or None for each
        response.
    """
    names = dict.fromkeys(
        [*self.columns, *(c for row in rows for c in row.columns)])
    given = {
        'prompts': [row.problem for row in rows],
        'completions': list(completions),
        **{name: [row.columns.get(name) for row in rows] for name in names}}
    if self._named is not None:
      given = {k: v for k, v in given.items() if k in self._named}
    try:
      result = self._function(**given)
    except (ChildProcessError, VerifierError, KeyboardInterrupt):
      raise
    except BaseException as error:  # sys.exit() is no end of this program
      return len(rows) * [Verdict(
          0.0, 'error', False, plain.error(error),
          trace=rewards.last_lines(error), blame=modules.failure(
              f'task.reward={self.name} fails', error))]
    try:
      if isinstance(result, (str, bytes, Mapping)):
        raise TypeError
      len(result)
      values = [result[i] for i in range(len(result))]
    except (TypeError, KeyError, IndexError):
      raise VerifierError(
          f'task.reward={self.name} returned {_shown(result)}: return a list '
          f'with a number or None for each of the {len(rows)} '
          'responses.') from None
    if len(values) != len(rows):
      raise VerifierError(
          f'task.reward={self.name} returned a list of length {len(values)} '
          f'for {len(rows)} responses: return a number or None for each.')
    return [self._verdict(i, value) for i, value in enumerate(values)]

  def _verdict(self, index: int, value: Any) -> Verdict:
    """Returns the verdict of one element of the result."""
    if value is None:
      return Verdict(0.0, 'skipped', False, blame=(
          f'task.reward={self.name} returned None: return a number for each '
          'response that it can judge.'))
    reward = _number(value)
    if reward is None:
      raise VerifierError(
          f'task.reward={self.name} returned {_shown(value)} as reward '
          f'{index + 1} of its list: return a number or None for each '
          'response.')
    if not abs(reward) <= rewards.LARGEST:
      said = f'task.reward={self.name} returned the reward {reward}'
      return Verdict(
          0.0, 'error', False, said,
          blame=f'{said}: return a number that float32 '
                'has, or None.')
    kind = 'correct' if reward >= 1 else 'partial' if reward > 0 else 'wrong'
    return Verdict(reward, kind)


def _number(value: Any) -> float | None:
  """Returns a number, or a scalar of NumPy or JAX, as float; else None."""
  if isinstance(value, (str, bytes, complex)) or getattr(value, 'shape', ()):
    return None
  try:
    return float(value)
  except OverflowError:
    return math.inf
  except (TypeError, ValueError):
    return None


def _shown(value: Any) -> str:
  return f'{plain.shown(value)} ({type(value).__name__})'
