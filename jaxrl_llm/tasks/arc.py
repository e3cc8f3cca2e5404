"""ARC-AGI-1: grids that change by a rule, to be found from a few examples.

A source is a file whose rows have the fields `id`, `train` and `test`, or a
folder with one JSON file a task, as the tasks are published. `train` and `test`
are lists of pairs, `{"input": grid, "output": grid}`. `rewards/grids.py` has
the text of a grid and the verdicts; docs/arc.md says what is ours and what is
the paper's.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import random
from typing import (
  Annotated,
  Any,
  Iterator,
  Literal,
  Mapping,
  NamedTuple,
  Sequence,
)

from absl import logging

from jaxrl_llm import answers
from jaxrl_llm.base import own_code
from jaxrl_llm.rewards import grids, Verdict
from jaxrl_llm.tasks import Problem, problem_files, sets, templates

INSTRUCTION = (
    'In each example, one rule turns the input grid into the output grid. Each '
    'line is a row of the grid, each digit the colour of a cell. Apply the '
    'rule to the test input. Answer with the output grid alone, in the same '
    'form.')
# {problem} is replaced by `text`.
FORMATS = {
    'chat': INSTRUCTION + '\n\n{problem}',  # in the tokeniser's chat format
    'question': INSTRUCTION + '\n\n{problem}\n\nTest output:\n',
    'none': '{problem}\n\nTest output:\n',
}
_TRIES = 50  # draws of another version of a task, until there is none
_TURNS = 8


@dataclasses.dataclass(frozen=True)
class Options:
  """Options for the tasks, their prompts, versions and rewards.

  Attributes:
    path: files of training tasks (.jsonl, .jsonl.gz, .json, .parquet), folders
      with one .json file a task, or data sets on the hub.
    heldout: the same for held-out tasks; they are not trained on. Evaluations
      on several are reported for each file too.
    heldout_share: share of the tasks of path to hold out if heldout is empty.
    largest: rows or columns; training tasks with a larger grid are left out
      before the split.
    tests: a task with several test grids is; separate (one problem for each) or
      together (one problem, solved when all its grids are).
    digits: a row's cells are joined (077) or spaced (0 7 7).
    template: text around the problem; chat, question, none, a text that
      contains {problem}, or a FILE.txt with one.
    markup: whether the text is a user's message in the model's chat markup;
      chat, none, or auto (yes for the template chat).
    system: system message in front of the user's, or a FILE.txt with one.
    reward: cells (share of right cells, 0 if the shape is wrong) or exact (1 if
      all are right, else 0).
    reasoning_tags: names of the tags of reasoning, such as think; only what
      follows the last end tag is judged, and a block without end has no answer.
    versions: other versions of each training task, turned or recoloured.
    turns: whether versions are turned and mirrored (8 ways).
    recolour: colours that versions exchange; all, nonzero (0 stays 0, which is
      the background of most tasks) or none.
    seed: seed of the split and of the versions.
  """
  path: Annotated[tuple[str, ...], 'problems'] = ()
  heldout: Annotated[tuple[str, ...], 'problems'] = ()
  heldout_share: Annotated[float, '[0, 1)', 'problems'] = 0.2
  largest: Annotated[int, '[1, 30]', 'problems'] = grids.LARGEST
  tests: Annotated[Literal['separate', 'together'], 'problems'] = 'separate'
  digits: Literal['joined', 'spaced'] = 'joined'
  template: own_code.FileText = own_code.FileText('chat')
  markup: Literal['auto', 'chat', 'none'] = 'auto'
  system: own_code.FileText = own_code.FileText('')
  reward: Literal['cells', 'exact'] = 'cells'
  reasoning_tags: tuple[str, ...] = ('think',)
  versions: Annotated[int, '[0, 1000]', 'problems'] = 0
  turns: bool = True
  recolour: Literal['nonzero', 'all', 'none'] = 'nonzero'
  seed: int = 0

  def __post_init__(self):
    self.worded()
    if self.versions and not self.turns and self.recolour == 'none':
      raise ValueError(
          f'task.versions={self.versions} needs a way to make them: set '
          'task.turns=True or task.recolour=nonzero.')

  def worded(self) -> templates.Template:
    """Returns the template."""
    return templates.make_template(
        self.template, FORMATS, markup=self.markup, system=self.system)


_DEFAULTS = Options()


class Pair(NamedTuple):
  """A pair of grids."""
  input: grids.Grid
  output: grids.Grid


class ArcTask(NamedTuple):
  """A task of a file.

  Attributes:
    name: its id, such as '007bbfb7'.
    train: examples.
    test: pairs whose outputs are asked for.
  """
  name: str
  train: tuple[Pair, ...]
  test: tuple[Pair, ...]

  def changed(self, turn: int, colours: Sequence[int]) -> 'ArcTask':
    """Returns a version of the task: all its grids turned and recoloured."""
    change = lambda grid: grids.turned(grids.recoloured(grid, colours), turn)
    return ArcTask(self.name, *(
        tuple(Pair(*map(change, pair)) for pair in pairs)
        for pairs in (self.train, self.test)))


def text(
    train: Sequence[Pair], inputs: Sequence[grids.Grid], *,
    spaced: bool = False) -> str:
  """Returns the text of examples and of the inputs to answer."""
  write = lambda grid: grids.write(grid, spaced=spaced)
  parts = [f'Example {i}\nInput:\n{write(a)}\nOutput:\n{write(b)}'
           for i, (a, b) in enumerate(train, 1)]
  if len(inputs) == 1:
    parts.append(f'Test input:\n{write(inputs[0])}')
  else:
    parts += [f'Test input {i}:\n{write(grid)}'
              for i, grid in enumerate(inputs, 1)]
    parts.append(f'Write the {len(inputs)} test outputs in this order, with an '
                 'empty line between them.')
  return '\n\n'.join(parts)


def _located(
    source: str, faults: list[problem_files.Fault],
) -> Iterator[tuple[str, str, Any]]:
  """Yields where a task is, its id where it has no field for it, its fields."""
  folder = pathlib.Path(own_code.expanded(source))
  if not folder.is_dir():
    for where, row in problem_files.rows(source, faults):
      yield where, '', row
    return
  files = sorted(folder.glob('*.json'))
  if not files:
    raise ValueError(f'{source} has no file *.json, one for each task.')
  for path in files:
    try:
      yield f'{path}, its task', path.stem, json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
      faults.append((f'{path}, its task', f'not valid JSON ({error}).'))


def read(source: str) -> list[ArcTask]:
  """Reads the tasks of a file, a folder or a data set.

  Returns:
    The tasks, in the order of the source; of a folder, by name.

  Raises:
    ValueError: rows are not valid. The message says how many, and names the
      file and the lines of the first ones.
  """
  found: dict[str, ArcTask] = {}
  faults: list[problem_files.Fault] = []
  for where, stem, row in _located(source, faults):
    try:
      task = _task(row, stem)
      if task.name in found:
        raise ValueError(f'the id {task.name!r} is there already.')
    except ValueError as error:
      faults.append((where, str(error)))
      continue
    found[task.name] = task
  problem_files.refuse(faults)
  if not found:
    raise ValueError(f'{source} has no tasks.')
  return [*found.values()]


def _task(row: Any, stem: str) -> ArcTask:
  """Returns the task of a row, or raises ValueError about it."""
  if not isinstance(row, dict):
    raise ValueError(f'{row!r:.40} is not an object with train and test.')
  name = row.get('id', stem)
  if not isinstance(name, str) or not name:
    raise ValueError(f'the id {name!r:.40} is not a text.')
  return ArcTask(name, _pairs(row, 'train'), _pairs(row, 'test'))


def _pairs(row: problem_files.Row, field: str) -> tuple[Pair, ...]:
  """Returns the pairs of a field, or raises ValueError about them."""
  pairs = row.get(field)
  if not isinstance(pairs, list) or not pairs:
    raise ValueError(f'field {field!r} is not a list of pairs of grids.')
  found = []
  for number, pair in enumerate(pairs, 1):
    for side in ('input', 'output'):
      if not isinstance(pair, dict) or side not in pair:
        raise ValueError(f'pair {number} of {field!r} has no {side}.')
      if said := grids.fault(pair[side]):
        raise ValueError(f'the {side} of pair {number} of {field!r} {said}.')
    found.append(Pair(pair['input'], pair['output']))
  return tuple(found)


def _side(task: ArcTask) -> int:
  """Returns the rows or columns of a task's largest grid."""
  return max(max(len(grid), len(grid[0]))
             for pair in (*task.train, *task.test) for grid in pair)


def split(
    tasks: Sequence[ArcTask], share: float, seed: int,
) -> tuple[list[ArcTask], list[ArcTask]]:
  """Splits tasks into those to train on and those to hold out.

  A task's side follows from the hash of its id among those of all tasks: it is
  the same in any order, and a few more tasks change the side of few.
  """
  rank = lambda task: hashlib.sha256(f'{seed} {task.name}'.encode()).digest()
  held = {task.name for task in
          sorted(tasks, key=rank)[:round(share * len(tasks))]}
  return ([task for task in tasks if task.name not in held],
          [task for task in tasks if task.name in held])


def versions(task: ArcTask, options: Options) -> list[ArcTask]:
  """Returns other versions of a task, all different, and not the task itself.

  They depend on the task, its id and the seed. Tasks with few colours and much
  symmetry may have fewer than `options.versions`.
  """
  rng = random.Random(f'{options.seed} {task.name}')
  first = 1 if options.recolour == 'nonzero' else 0
  found, tries = [task], 0
  while len(found) <= options.versions and tries < _TRIES:
    colours = [*range(10)]
    if options.recolour != 'none':
      colours[first:] = rng.sample(colours[first:], len(colours[first:]))
    made = task.changed(rng.randrange(_TURNS) if options.turns else 0, colours)
    tries = tries + 1 if made in found else 0
    if made not in found:
      found.append(made)
  return found[1:]


class Arc:
  """Task of ARC's tasks; see `tasks.Task`.

  Attributes:
    options: options of the task.
    tokenizer: the model's tokeniser.
    train: training problems.
    heldout: evaluation problems.
    stops: texts that end a response, as the template shows them.
  """

  def __init__(self, options: Options, tokenizer: Any):
    self.options, self.tokenizer = options, tokenizer
    self.stops = templates.stops(options.worded(), tokenizer)
    train, sources = self._small(_all(options.path)[0]), {}
    if options.heldout:
      heldout, sources = _all(options.heldout)
      train = [task for task in train if task.name not in sources]
    else:
      train, heldout = split(train, options.heldout_share, options.seed)
    if options.path and not train:
      raise ValueError(
          f'No task of task.path={options.path} is left to train on: raise '
          'task.largest, lower task.heldout_share, or set task.heldout to '
          'other files.')
    self.heldout = self._problems(heldout, 'heldout', sources)
    self.train = self._problems(train, 'train') + self._problems(
        [other for task in train for other in versions(task, options)],
        'version')

  def _small(self, tasks: Sequence[ArcTask]) -> list[ArcTask]:
    """Returns the tasks without large grids, and counts the others."""
    kept = [task for task in tasks if _side(task) <= self.options.largest]
    if len(kept) < len(tasks):
      logging.warning(
          'Left out of the training tasks: %d of %d, which have a grid with '
          'more than task.largest=%d rows or columns.', len(tasks) - len(kept),
          len(tasks), self.options.largest)
    return kept

  def _problems(
      self, tasks: Sequence[ArcTask], kind: str,
      sources: Mapping[str, str] | None = None) -> list[Problem]:
    """Returns the problems of tasks.

    Args:
      tasks: any number.
      kind: of the problems.
      sources: id of a task to `Problem.source`.
    """
    found = []
    for task in tasks:
      parts = [task.test] if self.options.tests == 'together' else [
          (pair,) for pair in task.test]
      for pairs in parts:
        shown = text(task.train, [pair.input for pair in pairs],
                     spaced=self.options.digits == 'spaced')
        prompt = templates.render(
            self.options.worded(), shown, self.tokenizer)
        # Of the task's own text, whatever the format.
        ident = sets.number(f'{task}{[pair.input for pair in pairs]}')
        outputs = [pair.output for pair in pairs]
        found.append(Problem(
            ident, prompt, kind, info=outputs, text=shown, answer='\n\n'.join(
                grids.write(grid, spaced=self.options.digits == 'spaced')
                for grid in outputs),
            source=(sources or {}).get(task.name, '')))
    return found

  def load(self, source: str) -> list[Problem]:
    """Reads all tasks of another source, with these options, none changed."""
    stem = os.path.basename(source.rstrip('/')).partition('.')[0]
    return self._problems(read(source), stem)

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Judges the last grid of a response, or the last ones of several.

    The verdict's kind is one of `grids.KINDS`.
    """
    del truncated  # a truncated response may still contain its answer
    tags = self.options.reasoning_tags
    text = answers.with_opened(problem.prompt, text, tags)
    return grids.judge(
        answers.final_part(text, tags), problem.info,
        partial=self.options.reward == 'cells')


def _all(sources: Sequence[str]) -> tuple[list[ArcTask], dict[str, str]]:
  """Returns the tasks of all sources, and the name of each one's source by id.

  Of tasks with one id the first is taken.
  """
  found: dict[str, ArcTask] = {}
  named: dict[str, str] = {}
  names = problem_files.names(sources)
  for source in sources:
    for task in read(source):
      first = found.setdefault(task.name, task)
      named.setdefault(task.name, names[source])
      if first != task:
        raise ValueError(
            f'{source}: the task {task.name} differs from the one in another '
            'file: remove one of them.')
  return [*found.values()], named


def create(tokenizer: Any, options: Options = _DEFAULTS) -> Arc:
  """Makes the task for a model's tokeniser, which it cannot do without."""
  templates.check_tokenizer(options.worded(), tokenizer, 'arc')
  return Arc(options, tokenizer)
