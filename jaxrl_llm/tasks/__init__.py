"""Tasks: problems, how they are put to the model, and how answers are judged.

A task is a module of this package with a dataclass `Options` and
`create(options, tokenizer) -> Task`; adding one is adding a file and its name
to `NAMES`.
"""

import dataclasses
import difflib
import importlib
from typing import Any, Protocol, Sequence

from jaxrl_llm.rewards import Verdict
from jaxrl_llm.tokenizer import Tokenizer

NAMES = ('countdown', 'math')


@dataclasses.dataclass(frozen=True)
class Problem:
  """One problem.

  Attributes:
    id: 0 <= id < 2**31; the same problem has the same id whatever the sizes
      and the order of the sets, since the sampler's noise is keyed by it.
    prompt: what the model reads.
    kind: the sort of problem, for reporting by kind.
    answer: a response that is right, or '' if none is known.
    info: whatever else the task's verifier needs.
  """
  id: int
  prompt: str
  kind: str
  answer: str = ''
  info: Any = None


class Task(Protocol):
  """What a task must offer.

  Three more are optional. `demonstration(index, *, seed) -> (Problem,
  response)`, a pure function of its arguments: a task that has it can be
  warm-started. `load(source) -> [Problem]`: its problems can be evaluated on
  any file. `submit`, of the arguments of `verify`: it judges elsewhere, see
  `rewards.submit`; `close()` ends what does.

  Attributes:
    tokenizer: of the task, or of the model it is used with.
    train: problems to learn from.
    heldout: problems to evaluate on; none of them is in `train`.
  """
  tokenizer: Tokenizer
  train: Sequence[Problem]
  heldout: Sequence[Problem]

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Judges one response; may raise, see `rewards.verify_all`."""


def problem_option(default: Any) -> Any:
  """Makes a field of `Options` that only says which problems there are.

  An evaluation keeps its responses when such a field changes. The metadata of
  a field of `Options` is that of `config.fields.Field`; without any, another
  value counts as another task.
  """
  return dataclasses.field(
      default=default, metadata={'affects': ('weights', 'warm_start')})


def closest(name: str, known: Sequence[str]) -> str:
  """' Did you mean ...?' and the known names, for an error about `name`."""
  near = difflib.get_close_matches(str(name), known, 1, 0.5)
  hint = f' Did you mean {near[0]!r}?' if near else ''
  return f'{hint} Known: {", ".join(known)}.'


def get(
    name: str, tokenizer: Tokenizer | None = None, **options: Any) -> Task:
  """Makes a task.

  Args:
    name: one of `NAMES`.
    tokenizer: of the model; None is the task's own, if it has one.
    **options: fields of the task's `Options`.

  Returns:
    The task.

  Raises:
    ValueError: an unknown task or option, or values that make no task.
  """
  if name not in NAMES:
    raise ValueError(f'task {name!r} is not known.{closest(name, NAMES)}')
  module = importlib.import_module(f'jaxrl_llm.tasks.{name}')
  known = [f.name for f in dataclasses.fields(module.Options)]
  for option in options:
    if option not in known:
      raise ValueError(
          f'task {name!r} has no option {option!r}.{closest(option, known)}')
  return module.create(module.Options(**options), tokenizer)
