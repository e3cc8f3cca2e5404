"""Numbers, tables and plot of the methods on a real language model."""

import math
import pathlib
import statistics
from typing import Any, Mapping, Sequence

import numpy as np

from benchmarks.claims.pkpo_arc_report import T95
from benchmarks.claims.pkpo_report import mean_and_error
from benchmarks.rl_step import markdown
from jaxrl_llm.monitoring.plots import STYLE

RESULT = pathlib.Path(__file__).parents[1] / 'results/claims/real.md'
SAMPLES = 8  # responses to each held-out problem
KS = 1, 8
LAST = 10  # last steps, over which reward and entropy are averaged
DRAWS = 10_000  # of the bootstrap

Result = Mapping[str, Any]

LABELS = {
    'start': 'not trained', 'grpo': 'GRPO', 'pkpo': 'PKPO, k=4',
    'speed': 'SPEED, n_init=4', 'jackpot': 'Jackpot, int8, lag 1'}
FIGURES = {
    'pass@1': 'pass@1', 'pass@8': 'pass@8', 'reward': 'reward in training',
    'entropy': 'entropy', 'samples': 'samples', 'minutes': 'minutes'}
WHOLE = 'samples', 'minutes'  # figures without decimals


def pass_at(k: int, right: Sequence[int]) -> np.ndarray:
  """Returns the unbiased pass@k of problems with so many right of SAMPLES."""
  return np.array([
      1 - math.comb(SAMPLES - count, k) / math.comb(SAMPLES, k)
      for count in right])


def numbers_of(
    rows: Sequence[Mapping[str, Any]], right: Sequence[int]) -> dict[str, Any]:
  """Returns the saved part of a run.

  Args:
    rows: rows of metrics.jsonl, one for each step; none without training.
    right: right responses to each held-out problem, in the order of their ids.

  Returns:
    Dictionary with the keys of FIGURES, `right`, and `curve`, the reward of
    each step's rollouts.
  """
  last = lambda name: statistics.fmean(
      row[name] for row in rows[-LAST:]) if rows else math.nan
  total = lambda name: sum(row[name] for row in rows)
  numbers = {
      **{f'pass@{k}': pass_at(k, right).mean() for k in KS},
      'reward': last('reward/mean'), 'entropy': last('response/entropy'),
      'samples': total('response/count'), 'minutes': total('seconds/step') / 60}
  return {
      **{name: round(float(value), 4) for name, value in numbers.items()},
      'right': list(right),
      'curve': [round(row['reward/mean'], 4) for row in rows]}


def by_arm(results: Sequence[Result]) -> dict[str, list[Result]]:
  """Groups the results by arm, in the order of LABELS."""
  arms = {arm: [r for r in results if r['arm'] == arm] for arm in LABELS}
  return {arm: found for arm, found in arms.items() if found}


def interval(gaps: Sequence[float]) -> tuple[float, float]:
  """Returns Student's 95% interval of a mean over seeds."""
  half = T95[len(gaps) - 1] * statistics.stdev(gaps) / len(gaps) ** 0.5
  return statistics.fmean(gaps) - half, statistics.fmean(gaps) + half


def bootstrap(gaps: np.ndarray) -> tuple[float, float]:
  """Returns the 95% interval of a mean over problems, by resampling them.

  Args:
    gaps: difference of two arms on each problem, averaged over the seeds.
  """
  draws = np.random.default_rng(0).integers(
      0, len(gaps), (DRAWS, len(gaps)), np.int32)
  low, high = np.quantile(gaps[draws].mean(-1), (0.025, 0.975))
  return float(low), float(high)


def difference(
    results: Sequence[Result], k: int, arm: str, other: str) -> list[str]:
  """Returns the cells of a row: mean difference in pass@k, and its intervals.

  The seeds are those that both arms have. Their held-out problems are the same.
  """
  right = {(r['arm'], r['seed']): r['right'] for r in results}
  gaps = [pass_at(k, right[arm, seed]) - pass_at(k, right[other, seed])
          for seed in sorted({r['seed'] for r in results})
          if {(arm, seed), (other, seed)} <= right.keys()]
  if len(gaps) < 2:
    return ['not run', '', '', '']
  over_seeds = interval([gap.mean() for gap in gaps])
  over_problems = bootstrap(np.mean(gaps, 0))
  apart = all(low > 0 or high < 0 for low, high in (over_seeds, over_problems))
  return [f'{np.mean(gaps):+.3f}', *(
      f'[{low:+.3f}, {high:+.3f}]' for low, high in (
          over_seeds, over_problems)), '' if apart else 'not distinguishable']


def table(results: Sequence[Result]) -> str:
  """Returns the table with one row per arm."""
  found = by_arm(results)

  def cell(arm, figure):
    values = [r[figure] for r in found.get(arm, ())]
    if not values:
      return 'not run'
    if figure in WHOLE:
      return f'{statistics.fmean(values):,.0f}'
    return '' if math.isnan(values[0]) else mean_and_error(values)

  return markdown(['', 'seeds', *FIGURES.values()], [
      [label, str(len(found.get(arm, ()))), *(
          cell(arm, figure) for figure in FIGURES)]
      for arm, label in LABELS.items()])


def differences(results: Sequence[Result]) -> str:
  """Returns the table of GRPO against no training, and the others against it.
  """
  pairs = [('grpo', 'start')] + [
      (arm, 'grpo') for arm in LABELS if arm not in ('start', 'grpo')]
  return markdown(
      ['', 'pass@k', 'difference', 'over seeds', 'over problems', ''],
      [[f'{LABELS[arm]} minus {LABELS[other]}', f'pass@{k}',
        *difference(results, k, arm, other)] for arm, other in pairs
       for k in KS])


def report(results: Sequence[Result], command: str) -> str:
  """Returns the report as Markdown."""
  different = lambda key: sorted({result[key] for result in results})
  return f'''# The methods on a real language model

`{command}`, {' to '.join(different('date'))}, \
{' and '.join(different('machine'))}, one core for each run.

configs/real/smollm2.py: SmolLM2-135M-Instruct learns arithmetic from its own \
weights. All arms have the config's settings, which were chosen for GRPO on \
other seeds, and about the same number of samples. pass@k is unbiased, from \
{SAMPLES} samples of each of {len(results[0]['right'])} held-out problems in \
other wordings. Mean and standard error over seeds; "not run" is what it says.

![reward in training]({RESULT.with_suffix('.png').name})

{table(results)}

Mean differences over the seeds that both arms have, paired; 95% intervals \
over seeds (Student's t), and over problems (bootstrap of {DRAWS:,} draws, of \
the means over seeds). A difference is distinguishable if both leave out 0.

{differences(results)}
'''


def draw(results: Sequence[Result], path: pathlib.Path) -> None:
  """Draws the reward of the rollouts by step, smoothed over LAST steps."""
  import matplotlib
  from matplotlib.figure import Figure as Canvas
  with matplotlib.rc_context(STYLE):
    figure = Canvas(figsize=(6, 3.8), dpi=130, layout='constrained')
    axes = figure.subplots()
    for arm, found in by_arm(results).items():
      if found[0]['curve']:
        steps = min(len(r['curve']) for r in found)
        curve = np.mean([r['curve'][:steps] for r in found], 0)
        axes.plot(np.convolve(curve, np.ones(LAST) / LAST, 'valid'),
                  label=LABELS[arm])
    axes.set(xlabel='step', ylabel='reward of the rollouts', ylim=(0, None))
    axes.legend()
    figure.savefig(path)
