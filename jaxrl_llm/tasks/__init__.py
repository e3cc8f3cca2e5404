"""Tasks: problems, their prompts, and the verification of responses.

A task is a module with a dataclass `Options` and a function
`create(options, tokenizer) -> Task`. The defaults of `Options` are the options'
defaults, and its docstring's section Attributes gives their meanings. A module
outside of this package is named in the config, `task.name=my_package.my_task`
or `task.name=FILE.py`. To add a task to the package, add such a file here and
put its name into `NAMES`.
"""

import dataclasses
import importlib
import types
from typing import Any, Mapping, Protocol, Sequence

from jaxrl_llm.rewards import plain, Verdict
from jaxrl_llm.tasks import modules
from jaxrl_llm.tasks.modules import closest
from jaxrl_llm.tokenizer import Tokenizer

__all__ = (
    'NAMES', 'Problem', 'Task', 'closest', 'get', 'module', 'module_option',
    'problem_option')

NAMES = ('countdown', 'math')


@dataclasses.dataclass(frozen=True)
class Problem:
  """One problem.

  Attributes:
    id: 0 <= id < 2**31. It depends on the problem alone, not on the size or
      the order of the sets, because it keys the sampler's noise.
    prompt: the text that the model reads.
    kind: category of the problem; some metrics are reported by kind.
    answer: a correct response, or '' if none is known.
    info: any other data that the task's verifier needs. Its repr must be the
      same in every process, since it tells problems apart.
    text: the problem without the prompt's template, for the reader; '' if the
      prompt has none.
  """
  id: int
  prompt: str
  kind: str
  answer: str = ''
  info: Any = None
  text: str = ''

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
    `submit(problem, text, truncated)`, which starts to judge a response
      outside of this thread; see `rewards.submit`.
    `judge(problems, texts, truncated) -> [Verdict]`, which judges many
      responses in one call, in place of `verify`; see `rewards.submit`.
    `close()`, which ends the processes that `submit` uses.
  And this attribute:
    `stops`, texts that end a response, besides the tokeniser's stop tokens.

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


def problem_option(default: Any) -> Any:
  """Makes a field of `Options` that affects only the choice of problems.

  An evaluation keeps its responses when such a field changes. Fields of
  `Options` take the metadata of `config.fields.Field`. If a field without
  metadata changes, the task counts as another task.
  """
  return dataclasses.field(
      default=default, metadata={'affects': ('weights', 'warm_start')})


def module_option(default: str = '') -> Any:
  """Makes a field of `Options` that names a module or a function of the user.

  The config makes the path of a FILE.py absolute; see `modules`.
  """
  return dataclasses.field(default=default, metadata={'kind': modules.Name})


def module(name: str) -> types.ModuleType:
  """Imports the module of a task.

  Args:
    name: one of `NAMES`, or the dotted name or FILE.py of a module outside.

  Returns:
    The module, with the dataclass `Options` and the function `create`.

  Raises:
    ValueError: there is no such task, its module cannot be imported, or it
      lacks one of the two.
  """
  if name in NAMES:
    return importlib.import_module(f'jaxrl_llm.tasks.{name}')
  if '.' not in str(name):
    raise ValueError(f'task.name={name} is not known.{closest(name, NAMES)}')
  found = modules.load(name)
  options = getattr(found, 'Options', None)
  if not isinstance(options, type) or not dataclasses.is_dataclass(options):
    raise ValueError(
        f'task.name={name} has no dataclass Options: define one there, with a '
        'default for each option of the task.')
  if not callable(getattr(found, 'create', None)):
    raise ValueError(
        f'task.name={name} has no function create(options, tokenizer): define '
        'it there, to return the task.')
  return found


def make_options(name: str, **options: Any) -> Any:
  """Makes the `Options` of a task; see `get` for arguments and errors."""
  found = module(name)
  known = [f.name for f in dataclasses.fields(found.Options)]
  for option in options:
    if option not in known:
      raise ValueError(
          f'task {name!r} has no option {option!r}.{closest(option, known)}')
  # A ValueError is the task's own sentence about a value.
  with modules.blamed(f'Options of task.name={name} fail', ValueError):
    return found.Options(**options)


def get(
    name: str, tokenizer: Tokenizer | None = None, **options: Any) -> Task:
  """Makes a task.

  Args:
    name: one of `NAMES`, or a module outside of the package; see `module`.
    tokenizer: the model's tokeniser; None selects the task's own, if any.
    **options: fields of the task's `Options`.

  Returns:
    The task.

  Raises:
    ValueError: the task, an option, or the value of an option is not valid.
  """
  given = make_options(name, **options)
  found = module(name)
  if name in NAMES:
    return found.create(given, tokenizer)
  with modules.blamed(f'create of task.name={name} fails'):
    task = found.create(given, tokenizer)
  _check(name, task)
  return task


def _check(name: str, task: Any) -> None:
  """Raises ValueError if a task from outside lacks a part of `Task`."""
  judges = ('verify', 'submit', 'judge')
  missing = [part for part in ('tokenizer', 'train', 'heldout')
             if getattr(task, part, None) is None]
  if not any(hasattr(task, part) for part in judges):
    missing.append('verify')
  if missing:
    raise ValueError(
        f'create of task.name={name} returns an object without '
        f'{" and ".join(missing)}: see jaxrl_llm.tasks.Task.')
  for problem in (*task.train[:1], *task.heldout[:1]):
    if ' at 0x' in repr(getattr(problem, 'info', None)):
      raise ValueError(
          f'info of the problems of task.name={name} has another repr in every '
          'process: use texts, numbers, tuples or a dataclass.')
