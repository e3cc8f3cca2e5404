"""Live display of a run, and the table at its end.

On a terminal, a separate thread redraws a few lines up to four times a second,
so a step pays only for one assignment. Elsewhere (a file, a pipe, a notebook),
about twenty plain lines are printed per phase.
"""

import contextlib
import logging as std_logging
import math
import sys
import time
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from absl import logging
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jaxrl_llm.rewards import plain

# Metric, its name on the screen, its format. Metrics missing in a row are not
# shown; the first ones that fit are shown on a narrow terminal.
NUMBERS = (
    ('loss', 'loss', '.3f'),
    ('reward/mean', 'reward', '.3f'),
    ('reward/pass@1', 'pass@1', '.3f'),
    ('eval/pass@1', 'held-out pass@1', '.3f'),
    ('response/truncated', 'truncated', '.0%'),
    ('update/entropy', 'entropy', '.3f'),
    ('response/length', 'length', '.1f'),
    ('speed/tokens_per_second', 'tokens/s', ',.0f'),
    ('seconds/step', 's/step', '.2f'),
)
_LINES_PER_PHASE = 20
_FEW_TRUNCATED = 0.05  # share up to which it is not shown
_BAR = 30  # characters


class _Phase(NamedTuple):
  """A phase: its name, total steps, steps done before, and start time."""
  name: str
  total: int
  first: int
  start: float


class Display:
  """Display of a run's progress; a context manager.

  All methods are cheap enough to be called at every step.
  """

  def __init__(
      self, name: str, *, show: bool = True, console: Console | None = None):
    """Prepares a display.

    Args:
      name: name of the run.
      show: whether to show anything.
      console: where to print; stdout by default.
    """
    self._name = name
    self._show = show
    self._console = console or Console()
    self._phase = _Phase('start', 0, 0, time.monotonic())
    self._enclosing = 0  # phases around the present one
    self._done, self._numbers, self._sample = 0, {}, ''
    self._live = Live(
        console=self._console, get_renderable=self._render,
        refresh_per_second=4) if (
            show and self._console.is_terminal) else None

  def __enter__(self) -> 'Display':
    if self._live:
      plain = sys.stderr
      self._live.start()
      _redirect_logs(plain, sys.stderr)  # prints logs above the live lines
    return self

  def __exit__(self, *_: Any) -> None:
    if self._live:
      above = sys.stderr
      self._live.stop()
      _redirect_logs(above, sys.stderr)

  @contextlib.contextmanager
  def phase(self, name: str, total: int = 0, done: int = 0) -> Iterator[None]:
    """Shows a phase of the run; afterwards, shows the enclosing phase again.

    An outermost phase stays until the next one, so that the last frame shows
    the end of the run.

    Args:
      name: name of the phase, such as 'RL'.
      total: number of steps; 0 if they are not counted.
      done: number of steps done before.
    """
    before = self._phase, self._done, self._numbers
    self._enclosing += 1
    self._phase = _Phase(name, total, done, time.monotonic())
    self._done, self._numbers = done, {}
    try:
      yield
    finally:
      self._enclosing -= 1
      if self._enclosing:
        self._phase, self._done, self._numbers = before

  def update(
      self, done: int, row: Mapping[str, float], sample: str = '') -> None:
    """Records a step for the display.

    Args:
      done: number of steps of the phase that are done.
      row: metrics of the step; those in `NUMBERS` are shown, the share of
        truncated responses if it is above 5%.
      sample: a recent response.
    """
    numbers = {label: format(row[name], style)
               for name, label, style in NUMBERS if name in row}
    before, self._done = self._done, done
    self._numbers = {**self._numbers, **numbers}
    if row.get('response/truncated', 1.0) <= _FEW_TRUNCATED:
      del self._numbers['truncated']
    self._sample = sample or self._sample
    if self._show and not self._live and self._is_due(before):
      figures = '  '.join(f'{k} {v}' for k, v in self._numbers.items())
      self.note(
          f'{self._phase.name} {self._counts()}  {figures}'.rstrip())

  def note(self, text: str) -> None:
    """Prints a permanent line."""
    if not self._show:
      return
    try:
      self._console.print(
          text, markup=False, highlight=False, soft_wrap=True)
    except (OSError, SystemExit) as error:  # rich exits on a broken pipe.
      self._show = False
      logging.warning(
          'Nothing more can be printed (%s): the run goes on.',
          getattr(error, 'strerror', 'the output was closed'))

  def _is_due(self, before: int) -> bool:
    """Returns whether the plain output shows this step."""
    every = max(1, self._phase.total // _LINES_PER_PHASE)
    return (before // every != self._done // every
            or self._done == self._phase.total)

  def _counts(self) -> str:
    """Returns the text with steps done, time passed and time left."""
    phase, done = self._phase, self._done
    passed = time.monotonic() - phase.start
    if not phase.total:
      return _clock(passed)
    text = f'{done}/{phase.total}  {_clock(passed)}'
    if done > phase.first:
      pace = passed / (done - phase.first)
      text += f', {_clock(pace * (phase.total - done))} left'
    return text

  def _render(self) -> Group:
    """Returns the lines shown on a terminal, none longer than it is wide."""
    width, counts = self._console.width, self._counts()
    # What the name and the bar may take: the rest, without three gaps.
    room = width - len(self._phase.name) - len(counts) - 3 * 2
    bar = max(min(_BAR, room - len(self._name)), 4)
    name = Text(self._name, style='bold')
    name.truncate(max(room - bar, 1), overflow='ellipsis')
    head = Table.grid(padding=(0, 2))
    head.add_row(
        name, Text(self._phase.name, style='cyan'),
        ProgressBar(self._phase.total or None, self._done, width=bar,
                    pulse=not self._phase.total),
        Text(counts, style='dim'))
    figures = Text()
    for label, value in self._numbers.items():
      if len(figures) + len(f'{label} {value}') <= width:
        figures.append(f'{label} ', style='dim').append(f'{value}  ')
    figures.rstrip()
    return Group(head, figures, Text(
        self._sample, style='green', no_wrap=True, overflow='ellipsis'))


def _redirect_logs(old: Any, new: Any) -> None:
  """Moves log handlers from one stream to another."""
  absl = logging.get_absl_handler().python_handler
  for handler in (absl, *std_logging.getLogger().handlers):
    if getattr(handler, 'stream', None) is old:
      handler.setStream(new)


def _clock(seconds: float) -> str:
  """Formats seconds as 1:05 or 2:00:31."""
  minutes, seconds = divmod(int(seconds + 0.5), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02}:{seconds:02}' if hours else (
      f'{minutes}:{seconds:02}')


def sample_line(records: Sequence[Mapping[str, Any]]) -> str:
  """Returns the first prompt, its response and the verdict as one line."""
  return plain.line(''.join(
      f'{r["prompt"]} {r["response"]}  [{r["verdict"]}]' for r in records[:1]))


def results(
    before: Mapping[str, float], after: Mapping[str, float]) -> Table:
  """Makes the table at the end of a run.

  Args:
    before: held-out estimates at the start, with standard errors under
      '<name>_error'; see `heldout.evaluate`.
    after: held-out estimates at the end.

  Returns:
    A table for `rich.print` with a row for each pass@k and for greedy.
  """
  table = Table(title='held-out problems', title_justify='left')
  table.add_column('')
  for name in ('before', 'after', 'change'):
    table.add_column(name, justify='right')

  def text(estimates, name):
    error = estimates.get(f'{name}_error')
    return f'{estimates[name]:.3f}' + (f' ± {error:.3f}' if error else '')

  # A resumed run may have other values of k than at its start.
  before = {**dict.fromkeys(after, math.nan), **before}
  for name in after:
    if name == 'greedy' or name.startswith('pass@') and '_' not in name:
      table.add_row(name, text(before, name), text(after, name),
                    f'{after[name] - before[name]:+.3f}')
  return table
