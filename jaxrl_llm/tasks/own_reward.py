"""Rewards by functions of the user, as TRL's trainers call them.

  def reward(completions, answer, **kwargs):
    return [float(a in text) for text, a in zip(completions, answer)]

A function is called with keywords only, once for many responses, and returns
one number or None for each; it may be `async`. It gets, as lists with one
element per response, `prompts`, the problems as they stand in the file;
`completions`, the responses; `completion_ids`, their tokens; and every other
column of the problem file under its name. If a problem is a list of messages,
its completion is one too: `[{'role': 'assistant', 'content': text}]`, or all
messages of a trajectory.
`trainer_state` has `global_step` and `max_steps`; `log_metric(name, value)` and
`log_extra(column, values)` write to the metrics and to the samples. A function
without **kwargs gets only what it names.
"""

import asyncio
import contextlib
import contextvars
import copy
import dataclasses
import functools
import inspect
import itertools
import pathlib
import sys
import types
from typing import (
  Any,
  Awaitable,
  Callable,
  Iterable,
  Iterator,
  Mapping,
  NamedTuple,
  Sequence,
)

from jaxrl_llm import rewards as rewards_lib
from jaxrl_llm.base import own_code, plain, process_state
from jaxrl_llm.base import results as results_lib
from jaxrl_llm.rewards import Facts, Verdict, VerifierError

# Names that no column may have.
GIVEN = ('prompts', 'completions', 'completion_ids', 'trainer_state',
         'log_metric', 'log_extra')


class ProblemRow(NamedTuple):
  """Fields of a problem that the reward functions receive; `Problem.info`.

  Attributes:
    problem: the problem as it stands in the file: a text or messages.
    answer: the reference answer; '' if there is none.
    columns: the file's other columns, the answer's among them.
  """
  problem: Any
  answer: str
  columns: Mapping[str, Any]


class Reward:
  """A reward function of the user.

  Attributes:
    name: its name in the config, for messages.
    label: its short name, for metrics; `labelled` makes labels differ.
  """

  def __init__(self, name: str):
    """Imports the function; see `own_code.function` for the errors."""
    self.name = name
    self._function: Callable[..., Any] = own_code.function(name)
    self.label = _leaf(self._function)
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

  def check(self, columns: Iterable[str]) -> None:
    """Raises ValueError if the function needs a column that no row has."""
    known = [*GIVEN, *columns]
    for name in self._required:
      if name not in known:
        raise ValueError(
            f'task.reward={self.name} needs {name!r}, which is no column of '
            'the problem files: rename the parameter, or give it a default.'
            f'{own_code.closest(name, known)}')

  def call(self, given: Mapping[str, Any]) -> Any:
    """Calls the function with copies of what it takes of the arguments.

    Returns:
      Its result, an awaitable one if it is `async`; or the error it raised, as
      `Raised`.
    """
    taken = {name: _copied(value) for name, value in given.items()
             if self._named is None or name in self._named}
    try:
      with process_state.code(), _printing_as(self.label):
        return self._function(**taken)
    except (ChildProcessError, VerifierError, KeyboardInterrupt):
      raise
    except BaseException as error:  # sys.exit() is no end of this program
      return Raised(error)

  async def wait(self, result: Awaitable[Any]) -> Any:
    """Returns the result of an `async` function, or `Raised`."""
    _PRINTING.set(self.label)
    try:
      with process_state.alone():
        return await result
    except BaseException as error:  # it would end the thread of the loop
      return Raised(error)

  def verdicts(self, result: Any, count: int) -> list[Verdict]:
    """Returns the verdict of each response by a result.

    The kind of a reward is 'correct' from 1 on, 'wrong' up to 0, and 'partial'
    between them; a reward that is not finite is an 'error', and None is
    'skipped'. The last two are not valid. Of `Raised`, all are 'error'.

    Args:
      result: what the function returned, or `Raised`.
      count: number of responses.

    Raises:
      VerifierError: the result is not one number or None for each response.
    """
    if isinstance(result, Raised):
      if isinstance(result.error, (ChildProcessError, VerifierError)):
        raise result.error
      return count * [Verdict(
          0.0, 'error', False, plain.error(result.error),
          trace=rewards_lib.last_lines(result.error), blame=own_code.failure(
              f'task.reward={self.name} fails', result.error))]
    try:
      if isinstance(result, (str, bytes, Mapping)) or (
          not hasattr(result, '__getitem__')  # a set has no order
          or len(getattr(result, 'shape', ())) > 1):
        raise TypeError
      values = [*itertools.islice(result, len(result))]
    except Exception:  # of a user's object
      raise VerifierError(
          f'task.reward={self.name} returned {_shown(result)}: return a list '
          f'with a number or None for each of the {count} '
          'responses.') from None
    if len(values) != count:
      raise VerifierError(
          f'task.reward={self.name} returned a list of length {len(values)} '
          f'for {count} responses: return a number or None for each.')
    return [self._verdict(i, value) for i, value in enumerate(values)]

  def _verdict(self, index: int, value: Any) -> Verdict:
    """Returns the verdict of one element of the result."""
    if value is None:
      return Verdict(0.0, 'skipped', False, blame=(
          f'task.reward={self.name} returned None: return a number for each '
          'response that it can judge.'))
    reward = plain.number(value)
    if reward is None:
      raise VerifierError(
          f'task.reward={self.name} returned {_shown(value)} as reward '
          f'{index + 1} of its list: return a number or None for each '
          'response.')
    if not abs(reward) <= rewards_lib.LARGEST:
      said = f'task.reward={self.name} returned the reward {reward}'
      return Verdict(
          0.0, 'error', False, said,
          blame=f'{said}: return a number from -{rewards_lib.LARGEST:g} to '
                f'{rewards_lib.LARGEST:g}, or None.')
    return Verdict(reward, _kind(reward))


class Raised(NamedTuple):
  """Error of a reward function, in place of its result."""
  error: BaseException


class Rewards:
  """The reward functions of a task.

  Attributes:
    functions: they judge together.
    weights: the factor of each one's reward.
  """

  def __init__(self, names: Sequence[str], weights: Sequence[float] = ()):
    """Imports the functions.

    Args:
      names: of the functions in the config.
      weights: one per function; () for 1.

    Raises:
      ValueError: see `own_code.function`; or a function is named twice.
    """
    self.functions = [*map(Reward, names)]
    self.weights = tuple(weights) or (1.0,) * len(self.functions)
    _distinguish(self.functions)
    self._columns: dict[str, None] = {}

  def declare(self, rows: Iterable[ProblemRow]) -> None:
    """Notes the columns of problem files.

    Raises:
      ValueError: a function needs a column that no row has.
    """
    rows = list(rows)
    columns = dict.fromkeys(c for row in rows for c in row.columns)
    self._columns.update(columns)
    for function in self.functions if rows else ():
      function.check(columns)

  def judge(
      self, rows: Sequence[ProblemRow], completions: Sequence[str],
      facts: Facts) -> list[Verdict]:
    """Calls each function once.

    Args:
      rows: the problem of each response.
      completions: the responses.
      facts: tokens of the responses, and steps.

    Returns:
      One verdict per response. Its reward is the weighted sum of the numbers
      that the functions gave; it is an 'error' if one function failed, and
      'skipped' if all returned None.

    Raises:
      VerifierError: a function does not return one number or None for each
        response.
    """
    given = self._arguments(rows, completions, facts)
    logs = [_Log(len(rows)) for _ in self.functions]
    results = [function.call({**given, 'log_metric': log.metric,
                              'log_extra': log.extra})
               for function, log in zip(self.functions, logs)]
    results = self._awaited(results)
    columns = [function.verdicts(result, len(rows))
               for function, result in zip(self.functions, results)]
    logged = _means([log.metrics for log in logs])
    extra = {name: values for log in logs for name, values in log.extras}
    return [dataclasses.replace(
        self._together(verdicts), logged=logged,
        extra={name: values[i] for name, values in extra.items()})
            for i, verdicts in enumerate(zip(*columns))]

  def _arguments(
      self, rows: Sequence[ProblemRow], completions: Sequence[str],
      facts: Facts) -> dict[str, Any]:
    """Returns what all functions get."""
    names = dict.fromkeys(
        [*self._columns, *(c for row in rows for c in row.columns)])
    return {
        'prompts': [row.problem for row in rows],
        'completions': [
            text if isinstance(row.problem, str) else messages
            for row, text, messages in zip(
                rows, completions, facts.messages or [
                    [{'role': 'assistant', 'content': text}]
                    for text in completions])],
        # Of a trajectory, a text is the last turn.
        'completion_ids': [
            ids[-last:] if isinstance(row.problem, str) else ids
            for row, ids, last in zip(
                rows, facts.tokens, facts.last or [0] * len(rows))],
        'trainer_state': types.SimpleNamespace(
            global_step=facts.step, max_steps=facts.steps),
        **{name: [row.columns.get(name) for row in rows] for name in names}}

  def _awaited(self, results: Sequence[Any]) -> list[Any]:
    """Returns the results, those of `async` functions once they are there."""
    waits = {i: self.functions[i].wait(result)
             for i, result in enumerate(results) if inspect.isawaitable(result)}
    if not waits:
      return [*results]

    async def together():
      return await asyncio.gather(*waits.values())

    with _printing_as(''):
      found = dict(zip(waits, results_lib.result(together())))
    return [found.get(i, result) for i, result in enumerate(results)]

  def _together(self, verdicts: Sequence[Verdict]) -> Verdict:
    """Returns the verdict of one response from those of the functions."""
    separate = {f.label: v.reward if v.valid else None
                for f, v in zip(self.functions, verdicts)}
    if len(verdicts) == 1 and self.weights == (1.0,):
      return dataclasses.replace(verdicts[0], rewards=separate)
    failed = [(f, v) for f, v in zip(self.functions, verdicts)
              if v.kind == 'error']
    if not failed and any(v.valid for v in verdicts):
      reward = sum(
          w * v.reward for w, v in zip(self.weights, verdicts) if v.valid)
      if abs(reward) <= rewards_lib.LARGEST:
        return Verdict(reward, _kind(reward), rewards=separate)
      said = f'task.reward_weights={self.weights} makes the reward {reward}'
      return Verdict(0.0, 'error', False, said, blame=f'{said}: lower them.',
                     rewards=separate)
    blame = '; and '.join(v.blame.rstrip('.') for v in verdicts if v.blame)
    return Verdict(
        0.0, 'error' if failed else 'skipped', False,
        '; '.join(f'{f.label}: {v.detail}' for f, v in failed),
        trace='\n'.join(v.trace for _, v in failed), blame=f'{blame}.',
        rewards=separate)


class _Log:
  """Numbers and values that a reward function logs in a call.

  Attributes:
    metrics: pairs of a name and a number.
    extras: pairs of a name and a value per response.
  """

  def __init__(self, count: int):
    self._count = count
    self.metrics: list[tuple[str, float]] = []
    self.extras: list[tuple[str, list[Any]]] = []

  def metric(self, name: str, value: float) -> None:
    """Adds a number to the step's metrics; see the top of this file."""
    found = plain.number(value)
    if found is None:
      raise TypeError(
          f'log_metric got {_shown(value)} as {plain.shown(name)}: pass a '
          'number')
    self.metrics.append((plain.line(name), found))

  def extra(self, column: str, values: Sequence[Any]) -> None:
    """Adds a value to the record of each response; see the top of this file."""
    values = list(values)
    if len(values) != self._count:
      raise TypeError(
          f'log_extra got {len(values)} values of {plain.shown(column)} for '
          f'{self._count} responses')
    self.extras.append((plain.line(column), values))


def _means(logged: Sequence[Sequence[tuple[str, float]]]) -> dict[str, float]:
  """Returns the mean of each name's numbers."""
  found: dict[str, list[float]] = {}
  for name, value in (pair for pairs in logged for pair in pairs):
    found.setdefault(name, []).append(value)
  return {name: sum(values) / len(values) for name, values in found.items()}


# The `async` function at work, whose prints have its name.
_PRINTING = contextvars.ContextVar('printing', default='')


class _Named:
  """File that writes whole lines to another, each behind a function's name."""

  def __init__(self, file: Any, name: str):
    self._file, self._name = file, name
    self._begun: dict[str, str] = {}  # name to the line that has no end yet
    # Displays of this program pass by, as rich has it for files of its own.
    self.rich_proxied_file = getattr(file, 'rich_proxied_file', file)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._file, name)

  def write(self, text: str) -> int:
    name = _PRINTING.get() or self._name
    *lines, self._begun[name] = (
        self._begun.get(name, '') + text).split('\n')
    for line in lines:
      self._write(name, line)
    return len(text)

  def _write(self, name: str, line: str) -> None:
    """Writes a line; a closed output is no fault of the function's."""
    with contextlib.suppress(OSError):
      self._file.write(f'{name}: {line}\n' if name else f'{line}\n')

  def flush(self) -> None:
    with contextlib.suppress(OSError):
      self._file.flush()

  close = flush  # the file is not the function's

  def end(self) -> None:
    """Writes the lines that have no end."""
    for name, line in self._begun.items():
      if line:
        self._write(name, line)
    self._begun = {}


@contextlib.contextmanager
def _printing_as(name: str) -> Iterator[None]:
  """Puts a name before each line that is printed; '' for that of the task."""
  file = _Named(sys.stdout, name)
  try:
    with contextlib.redirect_stdout(file):
      yield
  finally:
    file.end()


# Types whose values nobody can change.
_FIXED = frozenset((str, int, float, bool, type(None), bytes))


def _copied(value: Any) -> Any:
  """Returns a copy of a value; the value itself if it cannot be copied."""
  kind = type(value)
  if kind in _FIXED or callable(value):
    return value
  try:
    if kind is list:
      # Most are long and flat, such as tokens.
      return value[:] if _FIXED.issuperset(map(type, value)) else [
          *map(_copied, value)]
    if kind is dict:
      return {key: _copied(item) for key, item in value.items()}
    return copy.deepcopy(value)
  except Exception:  # of a user's object
    return value


def _leaf(function: Callable[..., Any]) -> str:
  """Returns the short name of a function."""
  while isinstance(function, functools.partial):
    function = function.func
  name = getattr(function, '__name__', type(function).__name__)
  return plain.line(name).strip('<>')


def _distinguish(functions: Sequence[Reward]) -> None:
  """Puts the module's name before labels that two functions have.

  Raises:
    ValueError: they are of one module.
  """
  labels = [function.label for function in functions]
  for function in functions:
    if labels.count(function.label) > 1:
      module = pathlib.PurePath(function.name.rpartition(':')[0]).name
      function.label = f'{module.removesuffix(".py")}.{function.label}'
  labels = [function.label for function in functions]
  for function in functions:
    if labels.count(function.label) > 1:
      raise ValueError(
          f'task.reward names two functions {function.label}: rename one of '
          'them, since metrics are named after them.')


def _kind(reward: float) -> str:
  return 'correct' if reward >= 1 else 'partial' if reward > 0 else 'wrong'


def _shown(value: Any) -> str:
  return f'{plain.shown(value)} ({type(value).__name__})'
