"""Statistics, tables and plots of the claims.

Results are rows, one for each run, with its seed and names, such as its arm.
Arms are compared by the seeds that both have. A difference is said with its 95%
interval, over seeds by Student's t and over problems by the bootstrap. It has a
mark with its p-value, in whose place `judged` says "not distinguishable": alone
where the interval has 0, or after Holm's correction for all of a text.
"""

import math
import pathlib
import re
import statistics
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

import numpy as np
from scipy import stats

from benchmarks.rl_step import markdown
from jaxrl_llm.monitoring.plots import STYLE

Result = Mapping[str, Any]
Figure = Callable[[Result], float | None]
Arms = Mapping[str, Sequence[Result]]

LEVEL = 0.95
_MARK = re.compile(r' {p=([^ }]+)(?: ([^}]*))?}')
DRAWS = 10_000  # of the bootstrap
LAST = 3  # evaluations that a figure is a mean of
WARM = 3  # first steps, which compile; each counts as the median step


class Interval(NamedTuple):
  """A mean, its interval, and the two-sided p-value of a mean of 0."""
  mean: float
  low: float
  high: float
  p: float


def student(values: Sequence[float]) -> Interval:
  """Returns Student's interval of a mean over seeds, of two or more."""
  mean, count = statistics.fmean(values), len(values)
  error = float(np.std(values, ddof=1)) / count ** 0.5  # NaN of a NaN
  half = stats.t.ppf((1 + LEVEL) / 2, count - 1) * error
  p = 2 * stats.t.sf(abs(mean) / error, count - 1) if error else (
      float(mean == 0))
  return Interval(mean, mean - half, mean + half, float(p))


def bootstrap(values: Sequence[float]) -> Interval:
  """Returns the interval of a mean over problems, which are drawn anew.

  Args:
    values: of each problem, averaged over the seeds.
  """
  values = np.asarray(values)
  draws = np.random.default_rng(0).integers(
      0, len(values), (DRAWS, len(values)), np.int32)
  means = values[draws].mean(-1)
  low, high = np.quantile(means, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
  p = 2 * min((means <= 0).mean(), (means >= 0).mean())
  return Interval(
      float(values.mean()), float(low), float(high), min(float(p), 1.0))


def told(*intervals: Interval, base: float = 0.0) -> str:
  """Says a difference: the mean, its intervals, and its mark for `judged`.

  Args:
    *intervals: of the same mean; all must leave out 0.
    base: figure of which `judged` says the first interval in per cent.
  """
  mean, low, high, _ = intervals[0]
  share = ' ' * bool(base) + ' to '.join(
      f'{end / base:+.{0 if abs(end / base) >= 0.005 else 1}%}'
      for end in (low, high) if base)
  return f'{mean:+.3f} ' + ' '.join(
      f'[{low:+.3f}, {high:+.3f}]' for _, low, high, _ in intervals) + (
          f' {{p={max(interval.p for interval in intervals)}{share}}}')


def ratio(values: Sequence[float]) -> str:
  """Says the geometric mean of ratios, and the interval of its logarithm."""
  if len(values) < 2:
    return 'not run'
  *found, p = student([math.log(value) for value in values])
  mean, low, high = map(math.exp, found)
  return f'{mean:.2f} [{low:.2f}, {high:.2f}] {{p={p}}}'


def holm(values: Sequence[float]) -> list[float]:
  """Returns p-values corrected for their number by Holm's step-down rule."""
  found, least = [0.0] * len(values), 0.0
  for rank, i in enumerate(np.argsort(values, kind='stable')):
    least = max(least, min(1.0, (len(values) - rank) * values[i]))
    found[i] = least
  return found


def judged(text: str, *, together: bool = False) -> str:
  """Says which differences of a text are not distinguishable from 0.

  Args:
    text: with the marks of `told` and `ratio`.
    together: whether p-values are corrected for their number in the text. Then
      a difference whose interval has 0 also has what this cannot exclude, in
      per cent of the figure that is compared with.

  Returns:
    The text with words in place of the marks.
  """
  marks = [(float(p), share) for p, share in _MARK.findall(text)]
  corrected = holm([p for p, _ in marks])

  def words(_):
    (p, share), after = next(each)
    if not p < 1 - LEVEL:  # NaN too
      return ', not distinguishable' + f': {share}' * (
          together and bool(share))
    if together and after >= 1 - LEVEL:
      digits = 2 if after >= 0.1 else 3
      return f', not distinguishable after Holm: p = {after:.{digits}f}'
    return ''

  each = iter(zip(marks, corrected))
  return _MARK.sub(words, text)


def mean_and_error(values: Iterable[float | None], digits: int = 3) -> str:
  """Says the mean over seeds and its standard error; None is a missing value.
  """
  values = list(values)
  there = [value for value in values if value is not None]
  if not there:
    return 'not reached' if values else ''
  text = f'{statistics.fmean(there):,.{digits}f}'
  if len(there) > 1:
    error = float(np.std(there, ddof=1)) / len(there) ** 0.5
    text += f' ± {error:,.{digits}f}'
  missed = len(values) - len(there)
  return text + (f' ({missed} of {len(values)} not reached)' if missed else '')


def by_arm(
    results: Iterable[Result], labels: Iterable[str], **names: Any,
) -> dict[str, list[Result]]:
  """Groups results by arm, in the order of the labels.

  Args:
    results: rows.
    labels: names of arms; those without a result are left out.
    **names: what else the rows must have.
  """
  results = [r for r in results if all(
      r[name] == value for name, value in names.items())]
  arms = {arm: [r for r in results if r['arm'] == arm] for arm in labels}
  return {arm: found for arm, found in arms.items() if found}


def pairs(
    arms: Arms, arm: str, other: str, figure: Figure,
    base: Figure | None = None) -> list[tuple[Any, Any]]:
  """Returns a figure of two arms at each seed that both have, in order.

  Args:
    arms: of `by_arm`.
    arm, other: names; the same one for figures of one run.
    figure: of the first.
    base: of the other, if it is not the same.
  """
  ours, theirs = (
      {r['seed']: r for r in arms.get(name, ())} for name in (arm, other))
  return [(figure(ours[seed]), (base or figure)(theirs[seed]))
          for seed in sorted(ours.keys() & theirs.keys())]


def difference(
    arms: Arms, arm: str, other: str, figure: Figure,
    base: Figure | None = None,
    problems: Callable[[Result], np.ndarray] | None = None) -> str:
  """Says the mean difference of two arms, paired by seed, for `judged`.

  Args:
    arms, arm, other, figure, base: those of `pairs`.
    problems: figure of each held-out problem, for an interval over these too.
  """
  found = pairs(arms, arm, other, figure, base)
  if len(found) < 2 or any(None in pair for pair in found):
    return 'not run'
  intervals = [student([a - b for a, b in found])]
  if problems:
    each = [a - b for a, b in pairs(arms, arm, other, problems)]
    intervals.append(bootstrap(np.mean(each, 0)))
  return told(*intervals, base=statistics.fmean(b for _, b in found))


def best(arms: Arms, prefix: str, figure: Figure) -> str:
  """Returns the arm with the largest mean of those whose names begin so."""
  return max((arm for arm in arms if arm.startswith(prefix)), default='',
             key=lambda arm: statistics.fmean(map(figure, arms[arm])))


def compared(
    arms: Arms, labels: Mapping[str, str], arm: str, other: str,
    figure: Figure) -> str:
  """Says a figure of two arms and their difference, for a sentence."""
  ours, theirs = (
      mean_and_error(map(figure, arms.get(name, ()))) for name in (arm, other))
  return (f'{labels[arm]} {ours} against {labels[other]} {theirs} '
          f'({difference(arms, arm, other, figure)})')


def differences(
    arms: Arms, labels: Mapping[str, str], against: Sequence[tuple[str, str]],
    figures: Mapping[str, Figure]) -> str:
  """Returns the table of differences, a row for each pair of arms.

  Args:
    arms: of `by_arm`.
    labels: name of each arm in the table.
    against: pairs of arms.
    figures: title to figure.
  """
  return markdown(['', *figures], [
      [f'{labels[arm]} minus {labels[other]}',
       *(difference(arms, arm, other, figure) for figure in figures.values())]
      for arm, other in against])


def table(
    arms: Arms, labels: Mapping[str, str],
    columns: Mapping[str, Figure | tuple[Figure, int]]) -> str:
  """Returns the table of means and standard errors, a row for each arm.

  Args:
    arms: of `by_arm`.
    labels: name of each arm in the table.
    columns: title to figure, or to figure and decimals. A figure that the runs
      of an arm do not have (KeyError) leaves its cell empty, and a column that
      no arm has is left out.
  """
  def cell(found, column):
    figure, digits = column if isinstance(column, tuple) else (column, 3)
    try:
      return mean_and_error([figure(r) for r in found], digits)
    except KeyError:
      return ''

  cells = {title: [cell(found, column) for found in arms.values()]
           for title, column in columns.items()}
  cells = {title: column for title, column in cells.items() if any(column)}
  seeds = [str(len(found)) for found in arms.values()]
  return markdown(['', 'seeds', *cells], zip(
      [labels[arm] for arm in arms], seeds, *cells.values()))


def curves_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns figures of the evaluations, and what was spent up to each.

  Args:
    rows: rows of metrics.jsonl, the first before training.

  Returns:
    Lists: samples, updates, gflops, elapsed (seconds without evaluations and
    compilation), generated and trained (tokens) up to each evaluation, and its
    figures, such as pass@1; and error, the standard error of the last pass@1.
  """
  usual = statistics.median(
      row['seconds/step'] for row in rows[1 + WARM:] or rows[1:])
  spent = dict.fromkeys((
      'samples', 'updates', 'gflops', 'elapsed', 'generated', 'trained'), 0.0)
  found: dict[str, Any] = {name: [] for name in spent}
  error = math.nan
  for number, row in enumerate(rows):
    if number:
      spent['samples'] += row['response/count']
      spent['updates'] += row['batch/rounds']
      spent['gflops'] += row['speed/flops'] / 1e9
      spent['elapsed'] += row['seconds/step'] if number > WARM else usual
      spent['generated'] += row['response/count'] * (
          row['response/length'] or 0)
      spent['trained'] += row.get('update/tokens') or 0
    if 'eval/pass@1' in row:
      for name, value in spent.items():
        found[name].append(round(value, 3))
      for name, value in row.items():
        if name.startswith('eval/pass@') and not name.endswith('_error'):
          found.setdefault(name.removeprefix('eval/'), []).append(
              round(value, 4))
      error = row['eval/pass@1_error']
  return {**found, 'error': round(error, 4)}


def means_of(
    rows: Sequence[Mapping[str, Any]], names: Iterable[str],
) -> dict[str, float]:
  """Returns the means of metrics over the rows that have them."""
  found = {}
  for name in names:
    values = [row[name] for row in rows if row.get(name) is not None]
    if values:
      found[name] = float(f'{statistics.fmean(values):.4g}')
  return found


def parts_of(
    rows: Sequence[Mapping[str, Any]], names: Mapping[str, str],
    size: int) -> dict[str, list[float]]:
  """Returns curves of means over `size` rows.

  Args:
    rows: metrics of steps or updates.
    names: metric to name of its curve, which is empty where no row has it.
    size: rows of a point.
  """
  found = {}
  for metric, name in names.items():
    values = [float(row[metric]) for row in rows
              if row.get(metric) is not None]
    found[name] = [
        float(f'{statistics.fmean(values[i:i + size]):.4g}')
        for i in range(0, len(values), size)]
  return found


def smoothed(result: Result, name: str) -> list[float]:
  """Returns a figure at each evaluation, a mean of the last LAST ones."""
  values = result[name]
  return [statistics.fmean(values[max(0, i - LAST + 1):i + 1])
          for i in range(len(values))]


def end(name: str = 'pass@1') -> Figure:
  """Returns the function for a figure at the end of a run."""
  return lambda result: smoothed(result, name)[-1]


def start(name: str = 'pass@1') -> Figure:
  """Returns the function for a figure before training."""
  return lambda result: result[name][0]


def before(results: Sequence[Result]) -> str:
  """Says pass@1 before training, which is the mean of a seed's runs."""
  by: dict[int, list[float]] = {}
  for result in results:
    by.setdefault(result['seed'], []).append(start()(result))
  return mean_and_error(map(statistics.fmean, by.values()))


def mean_of(name: str) -> Figure:
  """Returns the function for a number of a row, or the mean of its list."""
  def figure(result):
    value = result[name]
    if not isinstance(value, list):
      return value
    if not value:
      raise KeyError(name)
    return statistics.fmean(value)

  return figure


def at_equal(arms: Arms, spent: str, name: str = 'pass@1') -> Figure:
  """Returns the function for a figure after equal samples, seconds or others.

  It is that of the run when it had spent what the arm with the least spent in
  all, at the same seed.

  Args:
    arms: of `by_arm`.
    spent: 'samples', 'elapsed' or another list of `curves_of`.
    name: figure.
  """
  def figure(result):
    least = min(r[spent][-1] for found in arms.values() for r in found
                if r['seed'] == result['seed'])
    return float(np.interp(least, result[spent], smoothed(result, name)))

  return figure


class Panel(NamedTuple):
  """A plot of means over seeds.

  Attributes:
    arms: of `by_arm`; those without a look are left out.
    x, y: lists of the rows; a number x stands for its multiples.
    labels: texts of the axes.
    title: of the plot.
    looks: arm to the colour and style of its line.
    more: settings of the axes.
  """
  arms: Arms
  x: str | float
  y: str
  labels: tuple[str, str]
  title: str
  looks: Mapping[str, tuple[str, str]]
  more: Mapping[str, Any] = {}


def draw(
    path: pathlib.Path, panels: Sequence[Panel], names: Mapping[str, str],
) -> None:
  """Draws panels side by side; the first one of its lines has a legend.

  Panels whose arms lack one of the lists are left out.

  Args:
    path: of the picture.
    panels: plots.
    names: name of each arm in the legend.
  """
  import matplotlib
  from matplotlib.figure import Figure as Canvas
  if not (panels := [panel for panel in panels if _drawn(panel)]):
    return
  rows = math.ceil(len(panels) / 3)
  columns = math.ceil(len(panels) / rows)
  known: set[str] = set()
  with matplotlib.rc_context(STYLE):
    figure = Canvas(
        figsize=(4.6 * columns, 3.9 * rows), dpi=120, layout='constrained')
    for number, panel in enumerate(panels):
      axes = figure.add_subplot(rows, columns, number + 1)
      axes.set(xlabel=panel.labels[0], ylabel=panel.labels[1],
               title=panel.title, **panel.more)
      for arm in _drawn(panel):
        color, line = panel.looks[arm]
        axes.plot(*_curve(panel, panel.arms[arm]), color=color, linestyle=line,
                  label=names[arm])
      if not known.issuperset(_drawn(panel)):
        axes.legend(fontsize=7)
      known.update(_drawn(panel))
    figure.savefig(path)


def _drawn(panel: Panel) -> list[str]:
  """Returns the arms that have a look, results and both lists."""
  lists = [name for name in (panel.x, panel.y) if isinstance(name, str)]
  return [arm for arm in panel.looks if panel.arms.get(arm) and all(
      r.get(name) for r in panel.arms[arm] for name in lists)]


def _curve(
    panel: Panel, found: Sequence[Result],
) -> tuple[Sequence[float], Sequence[float]]:
  """Returns means over the seeds, up to the end of the shortest run."""
  mean = lambda name: [
      statistics.fmean(values) for values in zip(*(r[name] for r in found))]
  y = mean(panel.y)
  if isinstance(panel.x, str):
    return mean(panel.x), y
  return [panel.x * (i + 1) for i in range(len(y))], y
