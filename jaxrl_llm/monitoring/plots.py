"""Plots of a run: `curves.png`, drawn from `metrics.jsonl`."""

import io
import os
import pathlib
import statistics
from typing import Any, BinaryIO, Mapping, NamedTuple, Sequence

from jaxrl_llm.base import plain
from jaxrl_llm.monitoring import metrics
from jaxrl_llm.storage import paths


class Line(NamedTuple):
  """A curve: the metric, its name in the legend, and its colour."""
  metric: str
  label: str
  color: str


class Panel(NamedTuple):
  """A plot with a title and curves; `share` fixes the y-axis to 0..1."""
  title: str
  lines: tuple[Line, ...]
  share: bool = False


# Settings of matplotlib, also for the plots of benchmarks.
STYLE = {
    'font.size': 9, 'axes.titlesize': 10, 'axes.titleweight': 'bold',
    'axes.titlelocation': 'left', 'axes.spines.top': False,
    'axes.spines.right': False, 'axes.grid': True, 'grid.alpha': 0.25,
    'axes.axisbelow': True, 'legend.frameon': False}

COLORS = _BLUE, _RED, _GREEN, _GREY = (
    '#2a6fbb', '#d1495b', '#2e8b57', '#8d99ae')

PANELS = (
    Panel('Solved', (
        Line('reward/pass@1', 'training pass@1', _GREY),
        Line('eval/pass@8', 'held-out pass@8', _GREEN),
        Line('eval/pass@1', 'held-out pass@1', _BLUE),
        Line('eval/greedy', 'held-out greedy', _RED)), share=True),
    Panel('Entropy per token (nats)', (
        Line('update/entropy', 'entropy', _BLUE),)),
    Panel('Response length (tokens)', (
        Line('response/length', 'mean length', _BLUE),)),
    Panel('Seconds', (
        Line('seconds/step', 'step', _GREY),
        Line('seconds/sample', 'sampling', _GREEN),
        Line('seconds/update', 'update', _BLUE))),
)


def smooth(values: Sequence[float], window: int) -> list[float]:
  """Returns medians over an odd window, which is shorter at the ends."""
  reach = window // 2
  near = [values[max(0, i - reach):i + reach + 1] for i in range(len(values))]
  return [statistics.median(part) for part in near]


def draw(
    rows: Sequence[Mapping[str, Any]],
    path: str | os.PathLike[str] | BinaryIO, title: str = '') -> None:
  """Draws the panels of `PANELS`.

  A curve with a value in at least half of the rows is smoothed and drawn over
  its raw values. Other curves are drawn as points with lines.

  Args:
    rows: rows of `metrics.jsonl`, each with its 'step'.
    path: path of the PNG file, or a file to write it to.
    title: title of the figure.
  """
  import matplotlib  # slow to import, and needed only at the end of a run
  from matplotlib.figure import Figure
  with matplotlib.rc_context(STYLE):
    figure = Figure(figsize=(9, 5.6), dpi=150, layout='constrained')
    grid = figure.subplots(2, 2, sharex=True)
    for panel, axes in zip(PANELS, grid.flat):
      axes.set_title(panel.title)
      drawn = [y for line in panel.lines for y in curve(axes, line, rows)]
      axes.set_ylim(0, 1 if panel.share else _top(drawn))
      if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(loc='best', ncols=2)
    for axes in grid[-1]:
      axes.set_xlabel('step')
    if title:
      figure.suptitle(  # a dollar would begin mathematics
          title.replace('$', r'\$'), x=0.01, ha='left', fontweight='bold')
    figure.savefig(path)


def _top(values: Sequence[float]) -> float:
  """Returns the upper end of an axis, from the 97th percentile of the values.

  Outliers, such as steps that compile, thus do not stretch the axis.
  """
  ordered = sorted(values) or [1.0]
  return 1.25 * ordered[int(0.97 * (len(ordered) - 1))] or 1.0


def curve(
    axes: Any, line: Line, rows: Sequence[Mapping[str, Any]]) -> list[float]:
  """Draws one curve by the step, and returns its values, possibly none.

  See `draw`: one with few values is drawn as points.
  """
  points = [(row['step'], row[line.metric]) for row in rows
            if plain.is_finite(row.get(line.metric))]
  if not points:
    return []
  steps, values = zip(*points)
  if 2 * len(points) < len(rows):
    axes.plot(steps, values, 'o-', color=line.color, label=line.label,
              markersize=4, linewidth=1.6)
  else:
    axes.plot(steps, values, color=line.color, alpha=0.25, linewidth=0.8)
    axes.plot(steps, smooth(values, 1 + 2 * (len(values) // 40)),
              color=line.color, label=line.label, linewidth=1.6)
  return list(values)


def curves(workdir: str | os.PathLike[str], title: str = '') -> pathlib.Path:
  """Draws `curves.png` from the `metrics.jsonl` of a run's directory."""
  path, picture = pathlib.Path(workdir, 'curves.png'), io.BytesIO()
  draw(metrics.read(pathlib.Path(workdir, 'metrics.jsonl')), picture, title)
  paths.write_whole(path, picture.getvalue())
  return path
