"""Tables and plots of PKPO's claims."""

import collections
import pathlib
import statistics
from typing import Any, Callable, Iterable, Mapping, Sequence

from benchmarks.rl_step import markdown
from jaxrl_llm.monitoring.plots import STYLE

RESULT = pathlib.Path(__file__).parents[1] / 'results/claims/pkpo.md'
KS = 1, 2, 4, 8, 16
LAST = 50  # last steps, over which entropy is averaged
EVERY = 10  # a curve keeps one of this many steps

Result = Mapping[str, Any]
Figure = Callable[[Result], float]

TITLES = {
    'default': 'The default task',
    'mixed': 'Half hard, half ordinary',
    'hard': 'Hard problems alone',
}


def pass_at(k: int, problems: str) -> Figure:
  """Returns a function for pass@k on a set of held-out problems."""
  return lambda result: result['heldout'][problems][f'pass@{k}']


def numbers_of(
    rows: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> dict[str, Any]:
  """Returns the saved part of a run's metrics.

  Args:
    rows: rows of metrics.jsonl.
    sizes: training problems of each kind.

  Returns:
    Dictionary with 'entropy', the mean of the last steps in nats per token, and
    'solved', the curve of the cumulative solve rate, of the hard problems if
    there are any.
  """
  solved = [row['solve_rate'] for row in rows]
  if sizes[4:]:
    solved = [
        statistics.fmean(
            (row['solve_rate/product3'], row['solve_rate/product4']),
            weights=sizes[4:]) for row in rows]
  return {
      'entropy': round(
          statistics.mean(row['response/entropy'] for row in rows[-LAST:]), 4),
      'solved': [round(value, 4) for value in solved[EVERY - 1::EVERY]]}


def entropy(result: Result) -> float:
  """Returns the entropy; see `numbers_of`."""
  return result['entropy']


def solved(result: Result) -> float:
  """Returns the cumulative solve rate at the end."""
  return result['solved'][-1]


def mean_and_error(values: Sequence[float]) -> str:
  """Formats the mean and the standard error over seeds."""
  text = f'{statistics.mean(values):.3f}'
  if len(values) > 1:
    text += f' ± {statistics.stdev(values) / len(values) ** 0.5:.3f}'
  return text


def by_arm(results: Iterable[Result], task: str) -> dict[str, list[Result]]:
  """Groups the results of a task by arm."""
  arms = collections.defaultdict(list)
  for result in results:
    if result['task'] == task:
      arms[result['arm']].append(result)
  return arms


def table(results: Sequence[Result], task: str) -> str:
  """Returns a task's table with one row per arm."""
  arms = by_arm(results, task)
  sets = list(next(iter(arms.values()))[0]['heldout'])
  main = sets[-1]  # 'hard', if the task has it
  columns = {f'pass@{k}': pass_at(k, main) for k in KS}
  if len(sets) > 1:
    columns['pass@1, ordinary'] = pass_at(1, sets[0])
    columns['pass@16, ordinary'] = pass_at(16, sets[0])
  columns['solved so far'] = solved
  columns['entropy'] = entropy
  rows = [
      [label(arm), *(mean_and_error([figure(r) for r in found])
                     for figure in columns.values())]
      for arm, found in arms.items()]
  return markdown(['k', *columns], rows)


def label(arm: str) -> str:
  """Returns the name of an arm for tables and plots."""
  return {'frozen': 'not trained'}.get(arm, arm)


def claims(results: Sequence[Result]) -> str:
  """Returns the table of claims with a column per seed."""
  def cell(task, arm, seed, figure):
    return figure(next(
        r for r in results
        if (r['task'], r['arm'], r['seed']) == (task, arm, seed)))

  seeds = sorted({result['seed'] for result in results})
  rows = []

  def row(text, values, holds):
    rows.append([text, *(
        f'{value:.3f}{"" if ok else " (missed)"}'
        for value, ok in zip(values, map(holds, values)))])

  def compare(text, task, figure, arms, holds, combine=lambda a, b: a - b):
    row(text, [combine(*(cell(task, arm, seed, figure) for arm in arms))
               for seed in seeds], holds)

  pass_8, pass_1 = pass_at(8, 'all'), pass_at(1, 'all')
  compare('default: pass@8, k=4 minus k=1, at least .05',
          'default', pass_8, ('4', '1'), lambda x: x >= 0.05)
  compare('default: pass@8, k=4 minus not trained, at least -.02',
          'default', pass_8, ('4', 'frozen'), lambda x: x >= -0.02)
  compare('default: pass@1, k=1 minus k=4, above 0',
          'default', pass_1, ('1', '4'), lambda x: x > 0)
  compare('mixed: hard problems solved so far, k=8 / k=1, at least 1.5',
          'mixed', solved, ('8', '1'), lambda x: x >= 1.5,
          lambda a, b: a / b)
  compare('mixed: pass@16 on hard problems, k=8 minus k=1, at least .05',
          'mixed', pass_at(16, 'hard'), ('8', '1'), lambda x: x >= 0.05)
  return markdown(['claim', *(f'seed {seed}' for seed in seeds)], rows)


def report(results: Sequence[Result], command: str) -> str:
  """Returns the report as Markdown."""
  different = lambda key: sorted({result[key] for result in results})
  steps, seeds = results[0]['steps'], len(different('seed'))
  annealed = ', '.join(sorted({
      f'{r["k"]} ({r["task"]})' for r in results if r['arm'] == 'annealed'}))
  tables = '\n\n'.join(
      f'## {title}\n\n{table(results, task)}' for task, title in TITLES.items())
  return f'''# PKPO: what optimising pass@k does to pass@k

`{command}`, {' to '.join(different('date'))}, \
{' and '.join(different('machine'))}.

configs/pkpo/countdown.py and countdown_hard.py: a model of 0.28 million \
parameters on Countdown, 16 samples a prompt, {steps} steps, sloo_minus_one, \
advantages divided by the batch's standard deviation; {seeds} seeds. On the \
default task there are 32 prompts per step, the learning rate falls from 5e-4 \
to 0, and the entropy bonus is .05. On the others there are 16 prompts per \
step, the learning rate stays at 3e-4, there is no bonus, and rows of \
advantage 0 are left out of the mean. pass@k is estimated from 32 samples of \
each held-out problem (532 on the default task, 200 hard and 200 ordinary ones \
on the others). "Solved so far" is the share of training problems (of the hard \
ones, if there are any) with a right sample in some step. "Not trained" always \
samples from the warm start, which is the initial model of all runs. \
"Annealed" is pkpo.k={annealed}; these schedules were chosen on the same \
held-out problems, the mixed task's also on seeds 0 and 1. With k=16, the \
whole group, only groups with a single right sample have a signal; the entropy \
bonus acts on all. Mean and standard error over seeds. On tasks with hard \
problems, the columns are about these unless they say otherwise.

![pass@k and cumulative solve rate]({RESULT.with_suffix('.png').name})

{claims(results)}

{tables}
'''


def draw(results: Sequence[Result], path: pathlib.Path) -> None:
  """Draws pass@k by k (top) and the solve rate (bottom), a column per task."""
  import matplotlib
  from matplotlib.figure import Figure as Canvas
  with matplotlib.rc_context(STYLE):
    figure = Canvas(figsize=(11, 6.4), dpi=130, layout='constrained')
    grid = figure.subplots(2, len(TITLES))
    for (task, title), (above, below) in zip(TITLES.items(), grid.T):
      arms = by_arm(results, task)
      main = list(next(iter(arms.values()))[0]['heldout'])[-1]
      for arm, found in arms.items():
        look = _look(arm)
        above.plot(KS, [
            statistics.mean(pass_at(k, main)(r) for r in found) for k in KS],
                   marker='o', markersize=3, label=label(arm), **look)
        curve = [
            statistics.mean(values)
            for values in zip(*(result['solved'] for result in found))]
        below.plot(
            range(EVERY, EVERY * len(curve) + 1, EVERY), curve, **look)
      above.set_xscale('log', base=2)
      above.set_xticks(KS, map(str, KS))
      above.set(title=title, xlabel='k', ylim=(0, None))
      below.set(xlabel='step', ylim=(0, None))
    hard = ' (hard problems)'
    grid[0, 0].set_ylabel('held-out pass@k')
    grid[1, 0].set_ylabel('solved so far')
    for axes in grid[0, 1:]:
      axes.set_ylabel('held-out pass@k' + hard)
    for axes in grid[1, 1:]:
      axes.set_ylabel('solved so far' + hard)
    grid[0, -1].legend(title='trained with k =', loc='upper left')
    figure.savefig(path)


def _look(arm: str) -> dict[str, Any]:
  """Returns the colour and style of an arm's line; darker for a larger k."""
  import matplotlib
  if arm == 'frozen':
    return dict(color='black', linestyle=':', linewidth=1)
  if not arm.isdigit():
    return dict(color='#d1495b', linestyle='--', linewidth=1.6)
  shade = {1: 0.35, 2: 0.5, 4: 0.65, 8: 0.8, 16: 1.0}[int(arm)]
  return dict(color=matplotlib.colormaps['Blues'](shade), linewidth=1.6)
