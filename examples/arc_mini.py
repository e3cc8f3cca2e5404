"""ARC-mini: small puzzles of ARC's kind that a small model learns on a CPU.

A problem is made by one of a dozen rules. Its prompt shows examples and a test
input, `input>output;` and `input>`, the response is the test output; grids have
ARC's text and verdicts (`rewards/grids.py`). No other rule of the dozen fits
the examples and gives another answer. The kinds of problems are the rules; how
often the warm start applies the right one sets their pass rates.

`task.name=jaxrl_llm.examples.arc_mini` chooses it in any folder.
"""

import dataclasses
import random
from typing import Annotated, Callable, Literal, NamedTuple

from jaxrl_llm.base.tokenizer import CharTokenizer, Tokenizer
from jaxrl_llm.rewards import grids, Verdict
from jaxrl_llm.tasks import closest, Problem, sets

Grid = grids.Grid
_EMPTY = 0.4  # share of cells of colour 0
_MISSES = 10_000  # draws in a row that give no new problem


def _fall(grid: Grid) -> list[list[int]]:
  """Lets the coloured cells of each column fall to its end."""
  columns = [[0] * column.count(0) + [c for c in column if c]
             for column in zip(*grid)]
  return [[*row] for row in zip(*columns)]


def _mirror(grid: Grid) -> list[list[int]]:
  """Makes the right half of each row the mirror image of the left."""
  return [[row[min(i, len(row) - 1 - i)] for i in range(len(row))]
          for row in grid]


def _border(grid: Grid, colour: int) -> list[list[int]]:
  """Gives the outermost cells a colour."""
  inner = lambda i, size: 0 < i < size - 1
  return [[c if inner(y, len(grid)) and inner(x, len(row)) else colour
           for x, c in enumerate(row)] for y, row in enumerate(grid)]


def _outline(grid: Grid, colour: int) -> list[list[int]]:
  """Gives the empty cells beside a coloured one a colour."""
  def beside(y, x):
    return any(
        0 <= j < len(grid) and 0 <= i < len(grid[0]) and grid[j][i]
        for j, i in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)))
  return [[c if c or not beside(y, x) else colour for x, c in enumerate(row)]
          for y, row in enumerate(grid)]


def _count(grid: Grid) -> list[list[int]]:
  """Lays the coloured cells in one row, in the order of their colours."""
  return [sorted(c for row in grid for c in row if c) or [0]]


def _exchange(grid: Grid, a: int, b: int) -> list[list[int]]:
  """Exchanges two colours."""
  return [[{a: b, b: a}.get(c, c) for c in row] for row in grid]


def _rules(colours: int) -> dict[str, list[Callable[[Grid], list[list[int]]]]]:
  """Returns the rules of each family, for colours from 0 to `colours` - 1."""
  some = range(1, colours)
  return {
      'rotate': [lambda g: grids.turned(g, 1)],
      'half_turn': [lambda g: grids.turned(g, 2)],
      'flip': [lambda g: [[*row[::-1]] for row in g]],
      'flop': [lambda g: [[*row] for row in g[::-1]]],
      'transpose': [lambda g: grids.turned(g, 4)],
      'exchange': [lambda g, a=a, b=b: _exchange(g, a, b)
                   for b in some for a in range(1, b)],
      'fill': [lambda g, c=c: [[x or c for x in row] for row in g]
               for c in some],
      'gravity': [_fall],
      'border': [lambda g, c=c: _border(g, c) for c in some],
      'mirror': [_mirror],
      'outline': [lambda g, c=c: _outline(g, c) for c in some],
      'count': [_count],
  }


FAMILIES = tuple(_rules(4))


@dataclasses.dataclass(frozen=True)
class Options:
  """Options for the choice of problems.

  Attributes:
    kinds: rule families; rotate, half_turn, flip, flop, transpose, exchange,
      fill, gravity, border, mirror, outline or count.
    train: number of training problems of each kind.
    heldout: number of held-out problems of each kind.
    shown: number of extra problems of each kind for demonstrations only (0:
      demonstrations use the training problems).
    solved: share of each kind's demonstrations that apply the right rule, one
      for all or one for each of kinds; the others apply another rule. Sets the
      pass rates at the RL start.
    examples: pairs of grids in a prompt.
    smallest: least rows and columns.
    largest: most rows and columns.
    colours: number of colours, with 0.
    reward: cells (share of right cells, 0 if the shape is wrong) or exact (1 if
      all are right, else 0).
    seed: seed of problems and demonstrations. Held-out problems depend on seed
      and heldout, not on train.
  """
  kinds: tuple[str, ...] = FAMILIES
  train: Annotated[int, '[1, inf)', 'problems'] = 50
  heldout: Annotated[int, '[1, inf)', 'problems'] = 20
  shown: Annotated[int, '[0, inf)'] = 500
  solved: tuple[float, ...] = (0.5,)
  examples: Annotated[int, '[1, 9]', 'problems'] = 2
  smallest: Annotated[int, '[1, 9]', 'problems'] = 2
  largest: Annotated[int, '[1, 9]', 'problems'] = 3
  colours: Annotated[int, '[3, 10]', 'problems'] = 4
  reward: Literal['cells', 'exact'] = 'cells'
  seed: int = 0

  def __post_init__(self):
    for kind in self.kinds:
      if kind not in FAMILIES:
        raise ValueError(
            f'arc_mini kind {kind!r} is not known.{closest(kind, FAMILIES)}')
    if len({*self.kinds}) < max(len(self.kinds), 1):
      raise ValueError(
          f'arc_mini option kinds={self.kinds} must have at least one kind, '
          'and none twice.')
    if len(self.solved) not in (1, len(self.kinds)) or not all(
        0 <= share <= 1 for share in self.solved):
      raise ValueError(
          f'arc_mini option solved={self.solved} must be one share from 0 to '
          f'1, or one for each of kinds={self.kinds}.')
    if self.smallest > self.largest:
      raise ValueError(
          f'arc_mini option smallest={self.smallest} must be at most '
          f'largest={self.largest}.')


_DEFAULTS = Options()


class Puzzle(NamedTuple):
  """Grids of a problem; `Problem.info`.

  Attributes:
    inputs: of the examples and of the test.
    outputs: by the rule.
  """
  inputs: tuple[Grid, ...]
  outputs: tuple[Grid, ...]

  @property
  def prompt(self) -> str:
    """Text of the examples and the test input."""
    *examples, test = map(grids.write, self.inputs)
    return ''.join(f'{before}>{grids.write(after)};' for before, after in zip(
        examples, self.outputs)) + f'{test}>'


def _draw_grid(options: Options, shape: tuple[int, int], rng) -> Grid:
  return [[0 if rng.random() < _EMPTY else rng.randrange(1, options.colours)
           for _ in range(shape[1])] for _ in range(shape[0])]


class ArcMini:
  """Task of ARC-mini's problems; see `tasks.Task`."""

  def __init__(self, options: Options, tokenizer: Tokenizer | None = None):
    self.options = options
    self.tokenizer = tokenizer or CharTokenizer('0123456789\n>;')
    self._rules = _rules(options.colours)
    self._solved = dict(zip(
        options.kinds, options.solved * (
            len(options.kinds) // len(options.solved))))
    seen: set[int] = set()
    self.heldout = self._fill('heldout', seen)
    self.train = self._fill('train', seen)
    shown = self._fill('shown', seen) if options.shown else self.train
    self._shown = {kind: [p for p in shown if p.kind == kind]
                   for kind in options.kinds}

  def _draw(self, kind: str, rng: random.Random) -> Puzzle | None:
    """Draws a puzzle of a kind; None if it shows nothing or says two things."""
    options, rule = self.options, rng.choice(self._rules[kind])
    shape = tuple(
        rng.randint(options.smallest, options.largest) for _ in range(2))
    inputs = tuple(_draw_grid(options, shape, rng)
                   for _ in range(options.examples + 1))
    outputs = tuple(map(rule, inputs))
    if any(a == b for a, b in zip(inputs, outputs)):
      return None
    *examples, test = zip(inputs, outputs)
    for rules in self._rules.values():
      for other in rules:
        if all(other(a) == b for a, b in examples) and other(
            test[0]) != test[1]:
          return None
    return Puzzle(inputs, outputs)

  def _fill(self, split: str, seen: set[int]) -> list[Problem]:
    """Draws the problems of a split that are not in `seen`; extends `seen`."""
    problems: list[Problem] = []
    size = getattr(self.options, split)
    for kind in self.options.kinds:
      rng = random.Random(f'{self.options.seed} {split} {kind}')
      end, misses = len(problems) + size, 0
      while len(problems) < end:
        puzzle = self._draw(kind, rng)
        ident = puzzle and sets.number(puzzle.prompt)
        if puzzle and ident not in seen:
          seen.add(ident)
          problems.append(Problem(
              ident, puzzle.prompt, kind, grids.write(puzzle.outputs[-1]),
              puzzle))
          misses = 0
        elif (misses := misses + 1) > _MISSES:
          raise ValueError(
              f'arc_mini kind {kind!r} has too few distinct problems for '
              f'{split}={size}: lower it, or raise task.largest or '
              'task.colours.')
    return problems

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Judges a response as ARC's are; its kind is one of `grids.KINDS`."""
    del truncated  # the grid counts, as in ARC
    return grids.judge(
        text, problem.info.outputs[-1:],
        partial=self.options.reward == 'cells')

  def demonstration(self, index: int, *, seed: int) -> tuple[Problem, str]:
    """Returns demonstration `index` of a run, a problem and a response.

    All kinds are equally likely. The response is the answer with the kind's
    probability `solved`, else what another of the rules gives.
    """
    rng = random.Random(f'{seed} {index}')
    kind = rng.choice(self.options.kinds)
    problem = rng.choice(self._shown[kind])
    if rng.random() < self._solved[kind]:
      return problem, problem.answer
    *_, test = problem.info.inputs
    others = [rule for rules in self._rules.values() for rule in rules]
    while (text := grids.write(rng.choice(others)(test))) == problem.answer:
      pass
    return problem, text


def create(
    tokenizer: Tokenizer | None = None,
    options: Options = _DEFAULTS) -> ArcMini:
  """Makes the task; by default its tokeniser has one token per character."""
  return ArcMini(options, tokenizer)
