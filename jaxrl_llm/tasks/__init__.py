"""Tasks: problems, their prompts, and the verification of responses.

A task is a function `create(tokenizer, options: Options) -> Task` with a
dataclass of its options; `base.declared` says how a dataclass, or keywords in
its place, become fields of the config. One outside of this package is named in
the config, `task.name=FILE.py:NAME` or `task.name=FILE.py` for a function
`create`. To add one to the package, add such a file here and put its name into
`TASKS`.
"""

import dataclasses
import numbers
import types
from typing import Any, Callable, Mapping, Protocol, Sequence

from jaxrl_llm.base import own_code, plain
from jaxrl_llm.base.declared import EVALUATION, SFT, WEIGHTS
from jaxrl_llm.base.own_code import closest
from jaxrl_llm.base.plug import plug, PlugField
from jaxrl_llm.base.tokenizer import Tokenizer
from jaxrl_llm.rewards import Verdict
from jaxrl_llm.tasks import sets

__all__ = ('PLUG_FIELD', 'TASKS', 'Problem', 'Task', 'closest', 'get')

TASKS = {name: f'jaxrl_llm.tasks.{name}:create'
         for name in ('arc', 'code', 'countdown', 'math')}
TASKS['tools'] = 'jaxrl_llm.tasks.tool_task:create'


def _of_environment(
    name: str, module: types.ModuleType) -> Callable[..., Any] | None:
  """Returns the plug of an environment's task; None for another module."""
  if not {'reset', 'step'} & vars(module).keys():
    return None
  return own_code.function('jaxrl_llm.tasks.environment_task:maker')(name)


PLUG_FIELD = PlugField(
    'task.name', lambda: TASKS, ('tokenizer',), prefix='task.',
    affects=(WEIGHTS, SFT, EVALUATION),
    of_module=_of_environment)


@dataclasses.dataclass(frozen=True)
class Problem:
  """One problem.

  Attributes:
    id: 0 <= id < 2**31. It depends on the problem alone, not on the size or
      the order of the sets, because it keys the sampler's noise. Where two
      problems of a task have one id, `get` gives them others.
    prompt: the text that the model reads.
    kind: category of the problem; some metrics are reported by kind.
    answer: a correct response, or '' if none is known.
    info: any other data that the task's verifier needs. Its repr must be the
      same in every process, since it tells problems apart.
    text: the problem without the prompt's template, for the reader; '' if the
      prompt has none.
    source: of several files of held-out problems, the name of the problem's;
      evaluations are reported by it too. '' for one file, or none.
    teacher_prompt: what a teacher reads in place of the prompt; a run with
      `teacher.hint` makes it.
  """
  id: int
  prompt: str
  kind: str
  answer: str = ''
  info: Any = None
  text: str = ''
  source: str = ''
  teacher_prompt: str = ''

  @property
  def shown(self) -> str:
    """Problem for the reader of a sample."""
    return self.text or self.prompt

  @property
  def reference(self) -> str:
    """Answer for the reader of a sample, from `answer` or `info`."""
    if self.answer or isinstance(self.info, str):
      return self.answer or self.info
    if isinstance(self.info, Mapping):
      return plain.text(self.info.get('answer'))
    return plain.text(getattr(self.info, 'answer', ''))


class Task(Protocol):
  """Interface of a task.

  A task may also have these methods:
    `demonstration(index, *, seed) -> (Problem, response)`, a pure function of
      its arguments; it makes a warm start possible.
    `load(source) -> [Problem]`; it makes an evaluation on any file possible.
    `key(problem)`, equal for problems of which one is a repetition; else
      problems differ if their ids, prompts or infos do.
    `submit(problem, text, truncated)`, which starts to judge a response
      outside of this thread; see `rewards.submit`.
    `judge(problems, texts, truncated) -> [Verdict]`, which judges many
      responses in one call, in place of `verify`; see `rewards.submit`.
    `ready()`, which raises a ValueError if responses cannot be judged here; it
      is called before anything is compiled.
    `close()`, which ends the processes that `submit` uses.
  And this attribute:
    `stops`, texts that end a response, besides the tokeniser's stop tokens.
    `turns`, an `environments.turns.Turns`: the environment answers each turn of
      the model, and gives the reward in place of `verify`. A demonstration is
      then a list of pairs: what the model writes, and what it reads after it.

  Attributes:
    tokenizer: tokeniser of the task, or of the model that it is used with.
    train: training problems.
    heldout: evaluation problems; none of them is in `train`.
  """
  tokenizer: Tokenizer
  train: Sequence[Problem]
  heldout: Sequence[Problem]

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Judges one response. May raise an error; see `rewards.verify_all`."""


def get(
    name: str, tokenizer: Tokenizer | None = None, **options: Any) -> Task:
  """Makes a task.

  Args:
    name: one of `TASKS`, or a function outside of the package.
    tokenizer: the model's tokeniser; None selects the task's own, if any.
    **options: hyperparameters of the task; others have their defaults.

  Returns:
    The task.

  Raises:
    ValueError: the task, an option, or the value of an option is not valid.
  """
  found = plug(PLUG_FIELD, name)
  defaults = {
      field: one.default for field, one in found.hyperparameters.items()}
  given = {f'task.{option}': value for option, value in options.items()}
  for option in given.keys() - defaults.keys():
    known = [field.removeprefix('task.') for field in defaults]
    raise ValueError(
        f'task {name!r} has no option {option[5:]!r}.'
        f'{closest(option[5:], known)}')
  task = found.guarded()(tokenizer, **found.bound(defaults | given))
  if not found.packaged:
    _check(name, task)
  if all(isinstance(p, Problem) for p in (*task.train, *task.heldout)):
    _give_ids(name, task)
  return task


def _check(name: str, task: Any) -> None:
  """Raises ValueError if a task from outside lacks a part of `Task`."""
  judges = ('verify', 'submit', 'judge')
  missing = [part for part in ('tokenizer', 'train', 'heldout')
             if getattr(task, part, None) is None]
  played = getattr(getattr(task, 'turns', None), 'rewards', False)
  if not played and not any(hasattr(task, part) for part in judges):
    missing.append('verify')
  if missing:
    raise ValueError(
        f'task.name={name} returns an object without '
        f'{" and ".join(missing)}: see jaxrl_llm.tasks.Task.')
  for problem in (*task.train[:1], *task.heldout[:1]):
    if ' at 0x' in repr(getattr(problem, 'info', None)):
      raise ValueError(
          f'info of the problems of task.name={name} has another repr in every '
          'process: use texts, numbers, tuples or a dataclass.')


def _give_ids(name: str, task: Any) -> None:
  """Gives the problems of a task ids that no two of them have.

  Raises:
    ValueError: an id is no number, or out of range.
  """
  for problem in (*task.train, *task.heldout):
    if not isinstance(problem.id, numbers.Integral) or (
        not 0 <= problem.id < 2**31):
      raise ValueError(
          f'A problem of task.name={name} has the id {plain.shown(problem.id)}:'
          ' give it a number from 0 to 2**31 - 1.')
  heldout = sets.distinct(task.heldout)
  train = sets.distinct(task.train, heldout)
  if heldout is not task.heldout:
    task.heldout = heldout
  if train is not task.train:
    task.train = train
