"""Tasks: problems, their prompts, and the verification of responses.

A task is a module of this package with a dataclass `Options` and a function
`create(options, tokenizer) -> Task`. To add a task, add such a file and put its
name into `NAMES`.
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
    id: 0 <= id < 2**31. It depends on the problem alone, not on the size or
      the order of the sets, because it keys the sampler's noise.
    prompt: the text that the model reads.
    kind: category of the problem; some metrics are reported by kind.
    answer: a correct response, or '' if none is known.
    info: any other data that the task's verifier needs.
  """
  id: int
  prompt: str
  kind: str
  answer: str = ''
  info: Any = None


class Task(Protocol):
  """Interface of a task.

  A task may also have these methods:
    `demonstration(index, *, seed) -> (Problem, response)`, a pure function of
      its arguments; it makes a warm start possible.
    `load(source) -> [Problem]`; it makes an evaluation on any file possible.
    `submit(problem, text, truncated)`, which starts to judge a response
      outside of this thread; see `rewards.submit`.
    `close()`, which ends the processes that `submit` uses.

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


def closest(name: str, known: Sequence[str]) -> str:
  """Returns ' Did you mean ...?' and the known names, for an error message."""
  near = difflib.get_close_matches(str(name), known, 1, 0.5)
  hint = f' Did you mean {near[0]!r}?' if near else ''
  return f'{hint} Known: {", ".join(known)}.'


def get(
    name: str, tokenizer: Tokenizer | None = None, **options: Any) -> Task:
  """Makes a task.

  Args:
    name: one of `NAMES`.
    tokenizer: the model's tokeniser; None selects the task's own, if any.
    **options: fields of the task's `Options`.

  Returns:
    The task.

  Raises:
    ValueError: the task, an option, or the value of an option is not valid.
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
