"""Display of the phases of a run, and the table at its end.

On a terminal, a separate thread redraws a few lines up to four times a second,
so a step pays only for one assignment. Elsewhere (a file, a pipe, a notebook),
plain lines are printed: about twenty for the steps of a run, one after half a
minute without a line, and one the first time that a phase takes five seconds.
"""

import logging as std_logging
import math
import sys
import threading
import time
import types
from typing import Any, Mapping, Sequence

from absl import logging
from rich import box, cells
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from jaxrl_llm.base import phases, plain

# Metric, its name on the screen, its format. Metrics missing in a row are not
# shown; the first ones that fit are shown on a narrow terminal.
NUMBERS = (
    ('sft/loss', 'loss', '.3f'),
    ('sft/heldout_loss', 'held-out', '.3f'),
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
_EVERY = 30.0  # seconds after which a plain line is due
_LONG = 5.0  # seconds of a phase after which it gets a line, the first time
_SHORT = 1.0  # seconds up to which a phase within another is not shown
_FEW_TRUNCATED = 0.05  # share up to which it is not shown
_BAR = 30  # characters
_RESPONSES = 8  # of a table of completions
_LETTERS = 240  # of a response in it


class Display:
  """Display of the phases of its thread; a context manager.

  `update` and `note` are cheap enough to be called at every step.
  """

  def __init__(
      self, name: str, *, show: bool = True, brief: bool = False,
      console: Console | None = None):
    """Prepares a display.

    Args:
      name: name of the run.
      show: whether to show anything.
      brief: whether to show as little as possible, in plain lines: what is due
        after seconds of silence.
      console: where to print; stdout by default.
    """
    self._name = name
    self._show = show
    self._brief = brief
    self._console = console or Console()
    self._phases = phases.running()
    self._main: phases.Phase | None = None  # of the figures
    self._numbers, self._sample = {}, ''
    self._updated = 0  # units done at the latest update
    self._printed, self._known = time.monotonic(), set()
    self._closed = threading.Event()
    self._live = self._watch = None

  def __enter__(self) -> 'Display':
    self._root = phases.begin('preparing')
    if self._show and self._console.is_terminal and not self._brief:
      self._live = Live(
          console=self._console, get_renderable=self._render,
          refresh_per_second=4)
      plain = sys.stderr
      self._live.start()
      _redirect_logs(plain, sys.stderr)  # prints logs above the live lines
    elif self._show:
      self._watch = threading.Thread(
          target=self._print_when_due, name='progress', daemon=True)
      self._watch.start()
    return self

  def __exit__(self, *_: Any) -> None:
    self._closed.set()
    if self._watch:
      self._watch.join()
    if self._live:
      above = sys.stderr
      try:
        self._live.stop()
      except (OSError, SystemExit):  # The terminal is gone.
        self._show = False
      _redirect_logs(above, sys.stderr)
    phases.end(self._root)

  def update(
      self, done: int, row: Mapping[str, float], sample: str = '',
      remarks: Mapping[str, str] = types.MappingProxyType({})) -> None:
    """Records a step of the innermost phase.

    Args:
      done: number of steps of the phase that are done.
      row: metrics of the step; those in `NUMBERS` are shown, the share of
        truncated responses if it is above 5%.
      sample: lines about a recent response, from `sample_lines`.
      remarks: metric to what is shown behind it, from `health.trends`.
    """
    phase = self._phases[-1]
    if phase is not self._main:
      self._main, self._numbers, self._updated = phase, {}, phase.first
    numbers = {
        label: format(row[name], style) + (
            f' ({remarks[name]})' if name in remarks else '')
        for name, label, style in NUMBERS if name in row}
    before, self._updated = self._updated, done
    if done != phase.done:
      phase.count(done)
    self._numbers = {**self._numbers, **numbers}
    self._numbers.pop('update', None)
    # A step that computed no token has no loss. One whose loss is not finite
    # has tokens, and shows it.
    if 'update/loss' in row and not (row.get('update/processed') or 0) > 0:
      self._numbers |= {'entropy': 'none', 'update': 'none'}
    if row.get('response/truncated', 1.0) <= _FEW_TRUNCATED:
      del self._numbers['truncated']
    self._sample = sample or self._sample
    every = max(1, phase.total // _LINES_PER_PHASE)
    if self._watch and not self._brief and (
        before // every != done // every or done == phase.total):
      self._print_phases()

  def note(self, text: str) -> None:
    """Prints a permanent line, unless the display is brief."""
    if not self._brief:
      self.say(text)

  def say(self, text: str) -> None:
    """Prints a permanent line, also if the display is brief."""
    self._print(text, markup=False, highlight=False, soft_wrap=True)

  def show(self, table: Table) -> None:
    """Prints a permanent table, unless the display is brief."""
    if not self._brief:
      self._print(table)

  def _print(self, what: str | Table, **style: bool) -> None:
    """Prints something permanent above the live lines."""
    if not self._show:
      return
    try:
      self._console.print(what, **style)
    except (OSError, SystemExit) as error:  # rich exits on a broken pipe.
      self._show = False
      logging.warning(
          'Nothing more can be printed (%s): the run goes on.',
          getattr(error, 'strerror', 'the output was closed'))

  def _print_when_due(self) -> None:
    """Prints a plain line whenever one is due, until the display is closed."""
    while not self._closed.wait(1.0):
      self._print_if_due()

  def _print_if_due(self) -> None:
    """Prints a plain line about the phases if one is due."""
    innermost = self._shown()[-1]
    new = innermost.name not in self._known
    if innermost.passed() >= _LONG and new or (
        time.monotonic() - self._printed >= _EVERY):
      self._known.add(innermost.name)
      self._print_phases()

  def _print_phases(self) -> None:
    """Prints a plain line about the phases, with the figures."""
    self._printed = time.monotonic()
    shown = self._shown()
    text = ' > '.join(f'{phase.name} {phase.counts()}' for phase in shown)
    if shown[0] is self._main and self._numbers:
      text += '  ' + '  '.join(f'{k} {v}' for k, v in self._numbers.items())
    self.say(text)

  def _shown(self) -> list[phases.Phase]:
    """Returns the phases to show, outermost first.

    A phase is shown if it has several units, or is the innermost one. After the
    last phase, the one of the figures stays, so that the last frame shows the
    end of the run.
    """
    running = [*self._phases]
    inner = [phase for phase in running[1:]
             if phase.total > 1 or phase is running[-1]]
    return inner or [self._main or running[0]]

  def _render(self) -> Group:
    """Returns the lines shown on a terminal, none longer than it is wide."""
    first, *others = self._shown()
    width, cut = self._console.width, dict(no_wrap=True, overflow='ellipsis')
    # The longer one of the name and the bar gives way on a narrow terminal.
    head = Table.grid(
        Column(), Column(no_wrap=True), Column(max_width=_BAR),
        Column(no_wrap=True), padding=(0, 2))
    head.add_row(
        Text(self._name, 'bold', **cut), Text(first.name, 'cyan'),
        ProgressBar(first.total or None, first.done, pulse=not first.total),
        Text(first.counts(), 'dim'))
    lines = [head, *(
        Text.assemble(
            (f'  {phase.name}  ', 'cyan'), (phase.counts(), 'dim'), **cut)
        for phase in others if phase.passed() >= _SHORT)]
    figures = Text()
    for label, value in self._numbers.items() if first is self._main else ():
      if len(figures) + len(f'{label} {value}') <= width:
        figures.append(f'{label} ', style='dim').append(f'{value}  ')
    figures.rstrip()
    return Group(*lines, *[figures] * bool(figures), *(
        Text(_middle_out(line, width), style=style, no_wrap=True)
        for line, style in zip(
            self._sample.splitlines(), ('dim green', 'green'))))


def _middle_out(text: str, width: int) -> str:
  """Returns the beginning and the end of a text that is too long.

  A response ends with its answer, a problem with its question.
  """
  if cells.cell_len(text) <= width:
    return text
  begin = (width - 3) // 2
  end = cells.set_cell_size(text[::-1], width - 3 - begin)[::-1]
  return f'{cells.set_cell_size(text, begin)} … {end}'


def _redirect_logs(old: Any, new: Any) -> None:
  """Moves log handlers from one stream to another."""
  absl = logging.get_absl_handler().python_handler
  for handler in (absl, *std_logging.getLogger().handlers):
    if getattr(handler, 'stream', None) is old:
      handler.setStream(new)


def sample_lines(records: Sequence[Mapping[str, Any]]) -> str:
  """Returns two lines: the first problem; its response and the verdict."""
  return ''.join(
      f'{plain.line(r["prompt"])}\n'
      f'{plain.line(r["response"])}  [{plain.line(r["verdict"])}]'
      for r in records[:1])


def completions(records: Sequence[Mapping[str, Any]]) -> Table:
  """Makes a table of the responses to one problem.

  Args:
    records: in the format of samples.jsonl, at least one; those of the first
      group are shown, at most 8.

  Returns:
    A table for `rich.print`; long responses are cut in the middle.
  """
  first = records[0]
  group = [r for r in records if r['group'] == first['group']]
  has_advantage = any(r.get('advantage') is not None for r in group)
  table = Table(
      title=Text(f'step {first["step"]}: ' + _middle_out(
          plain.line(first['prompt']), _LETTERS)), title_justify='left',
      box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
  for name in ('reward', *['advantage'] * has_advantage):
    table.add_column(name, justify='right')
  table.add_column('verdict')
  table.add_column('response', overflow='fold')

  def number(value, style):
    return '-' if value is None else format(value, style)

  for r in group[:_RESPONSES]:
    numbers = [number(r['reward'], '.3g')]
    if has_advantage:
      numbers.append(number(r.get('advantage'), '+.2f'))
    table.add_row(*numbers, *(Text(t) for t in (
        plain.line(r['verdict']),
        _middle_out(plain.line(r['response']), _LETTERS))))
  if len(group) > _RESPONSES:
    table.caption = Text(f'{len(group) - _RESPONSES} more in samples.jsonl')
    table.caption_justify = 'left'
  return table


def results(
    before: Mapping[str, float], after: Mapping[str, float]) -> Table:
  """Makes the table at the end of a run.

  Args:
    before: held-out estimates at the start, with standard errors under
      '<name>_error', from `heldout.evaluate`.
    after: held-out estimates at the end.

  Returns:
    A table for `rich.print` with a row for each pass@k and for greedy, of all
    problems and of each file.
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
    kind = name.rpartition('/')[2]
    if kind == 'greedy' or kind.startswith('pass@') and '_' not in kind:
      table.add_row(name, text(before, name), text(after, name),
                    f'{after[name] - before[name]:+.3f}')
  return table
