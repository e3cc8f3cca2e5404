"""Tasks whose problems are played in an environment."""

import dataclasses
import json
import random
from typing import (
  Annotated,
  Any,
  Callable,
  Hashable,
  Literal,
  Mapping,
  Sequence,
)

from jaxrl_llm.base import own_code, results
from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.environments import Limits, worker
from jaxrl_llm.environments.turns import Turns
from jaxrl_llm.tasks import Problem, problem_files, sets, templates

_Count = Annotated[int, '[1, inf)']


@dataclasses.dataclass(frozen=True)
class Options:
  """Options for the problems and the limits of their trajectories.

  Attributes:
    path: files of training problems, or data sets on the hub; without one, the
      environment's own: a function problems(split, seed) -> [dictionary].
    heldout: files or data sets of held-out problems.
    heldout_count: number of problems of path to hold out if heldout is empty.
    markup: whether prompt and observations are a user's turns in the model's
      chat markup; chat, none, or auto (yes if the model has a chat template).
    system: system message in front of the prompt, or a FILE.txt with one.
    max_turns: most turns of the model in a trajectory.
    max_turn: most tokens of a turn, its stop token included (none: what
      max_response leaves).
    max_observation: most tokens of an observation; of a longer one the model
      reads the beginning.
    timeout: time limit in seconds for a step of the environment.
    workers: number of processes for them (0: one per core, at most 8).
    seed: seed for the choice of the held-out problems.
  """
  path: Annotated[tuple[str, ...], 'problems'] = ()
  heldout: Annotated[tuple[str, ...], 'problems'] = ()
  heldout_count: Annotated[int, '[0, inf)', 'problems'] = 100
  markup: Literal['auto', 'chat', 'none'] = 'auto'
  system: own_code.FileText = own_code.FileText('')
  max_turns: _Count = 8
  max_turn: Annotated[int | None, '[1, inf)'] = None
  max_observation: _Count = 256
  timeout: Annotated[float, '(0, 86400]'] = 10.0
  workers: Annotated[int, '[0, inf)', 'free'] = 0
  seed: int = 0


_DEFAULTS = Options()


def in_chat(tokenizer: Any) -> str:
  """Returns 'chat' if the model has a chat template, else 'none'."""
  own = getattr(tokenizer, 'own', None)
  return 'chat' if getattr(own, 'chat_template', None) else 'none'


class Played:
  """Task whose problems are played in an environment; see `tasks.Task`.

  Attributes:
    options: options of the task.
    tokenizer: the model's tokeniser; one of the environment's ALPHABET for a
      model without one.
    turns: environment of the problems.
    stops: texts that end a turn, as the chat template shows them.
    train: training problems.
    heldout: evaluation problems.
  """

  def __init__(self, name: str, options: Options, tokenizer: Any):
    self.options, self._name = options, name
    self._module = worker.environment(name)
    if tokenizer is None:
      tokenizer = self._characters()
    self.tokenizer = tokenizer
    self._template = templates.make_template(
        'none', system=options.system, markup=options.markup if (
            options.markup != 'auto') else in_chat(tokenizer))
    self.turns = Turns(
        name, Limits(
            options.max_turns, options.max_turn, options.max_observation),
        markup=self._template.chat, timeout=options.timeout,
        workers=options.workers)
    self.close = self.turns.close  # ends the worker processes
    self.stops = templates.stops(self._template, tokenizer)
    if self._template.chat:
      tokenizer.next_turn('')  # refuses templates that cannot go on
    self.train, self.heldout = sets.split(
        self._all(options.path, 'train'),
        self._all(options.heldout, 'heldout'), options.heldout_count,
        key=self.key, rank=sets.by_seed(options.seed),
        origin=f'task.path={options.path}' if options.path else name)
    if hasattr(self._module, 'demonstration'):
      self.demonstration = self._demonstration

  def _characters(self) -> CharTokenizer:
    """Returns the tokeniser of a small model without one of its own."""
    alphabet = getattr(self._module, 'ALPHABET', None)
    if not isinstance(alphabet, str):
      raise ValueError(
          f'{self._name} needs a tokeniser: set model.hf to a model, or '
          "ALPHABET = '...' in the file to the characters that a small model "
          'reads and writes, a token each.')
    return CharTokenizer(alphabet)

  def _demonstration(
      self, index: int, *, seed: int) -> tuple[Problem, list[tuple[str, str]]]:
    """Returns demonstration `index` of a run: a problem, and its turns."""
    rng = random.Random(f'demonstration {seed} {index}')
    problem = rng.choice(self.train)
    found = worker.called(
        self._module, self._name, 'demonstration', problem.info,
        rng.randrange(1 << 31))
    if not (isinstance(found, list) and found and all(
        isinstance(turn, tuple) and [*map(type, turn)] == [str, str]
        for turn in found)):
      raise ValueError(
          f'demonstration of {self._name} returned {found!r:.80}: return a '
          'list of pairs, the text of a turn and what the model reads after '
          "it, '' after the last.")
    return problem, found

  def _all(self, sources: Sequence[str], split: str) -> list[Problem]:
    """Returns the problems of files, or of the environment, each once."""
    # Evaluations on several files are reported for each.
    names = problem_files.names(sources) if split == 'heldout' else {}
    found = [
        dataclasses.replace(problem, source=names.get(source, ''))
        for source in sources for problem in self.load(source)]
    own = not self.options.path and not sources
    if own and hasattr(self._module, 'problems'):
      made = own_code.guarded(
          f'problems of {self._name}', lambda: [
              *results.result(self._module.problems(
                  split, self.options.seed))])()
      found += map(self._problem, made)
    return sets.once(found, self.key, sources or [self._name])

  def key(self, problem: Problem) -> Hashable:
    """Returns what tells a problem from others: what `reset` gets."""
    return sets.digest(problem.info)

  def load(self, source: str) -> list[Problem]:
    """Reads the problems of a file or data set."""
    return [self._problem(row) for _, row in problem_files.rows(source)]

  def _problem(self, row: Mapping[str, Any]) -> Problem:
    try:
      text = json.dumps(dict(row))
    except (TypeError, ValueError) as error:
      raise ValueError(
          f'A problem of task.name={self._name} is no dictionary of texts, '
          f'numbers and lists of them ({error}): correct it.') from None
    row = json.loads(text)  # as the worker will have it
    # A copy, since `reset` may change what it gets.
    _, text = worker.begin(self._module, self._name, json.loads(text), 0)
    prompt = templates.render(self._template, text, self.tokenizer)
    return Problem(
        sets.number(json.dumps(row, sort_keys=True)), prompt,
        str(row.get('kind', 'problem')),
        answer=str(row.get('answer', '')), info=row, text=text)

def maker(name: str) -> Callable[..., Played]:
  """Returns the plug of an environment's task.

  Args:
    name: of the environment's module, or its FILE.py.
  """
  def create(tokenizer: Any = None, options: Options = _DEFAULTS) -> Played:
    return Played(name, options, tokenizer)

  return create
