"""Numbers, tables and plot of PKPO's claim on ARC-mini."""

import collections
import math
import pathlib
import statistics
from typing import Any, Mapping, Sequence

from benchmarks.claims.pkpo_report import mean_and_error
from benchmarks.rl_step import markdown
from jaxrl_llm.monitoring.plots import STYLE

RESULT = pathlib.Path(__file__).parents[1] / 'results/claims/pkpo_arc.md'
KS = 1, 8, 16
SAMPLES = 32  # responses to each held-out problem
LAST = 20  # last steps, over which reward and entropy are averaged
EVERY = 5  # a curve keeps one of this many steps
HARD = 0.5  # rules that fewer of their demonstrations apply are hard
# Two-sided 95% quantiles of Student's t by degrees of freedom.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}

Result = Mapping[str, Any]

LABELS = {
    'frozen': 'not trained', '1': 'k=1', '8': 'k=8', '16': 'k=16=n',
    'half': 'k=1, half the learning rate', 'entropy': 'k=1, entropy bonus'}
FIGURES = {
    'solved': 'solved so far', 'solved_hard': 'of the hard rules',
    **{f'pass@{k}': f'pass@{k}' for k in KS},
    **{f'best@{k}': f'best of {k}' for k in KS},
    'reward': 'reward in training', 'entropy': 'entropy'}


def best_of(rewards: Sequence[float], k: int) -> float:
  """Returns the mean of the largest of k rewards, over all subsets of k."""
  ranked = sorted(rewards)
  return sum(
      reward * math.comb(i, k - 1) for i, reward in enumerate(ranked)
  ) / math.comb(len(ranked), k)


def numbers_of(
    rows: Sequence[Mapping[str, Any]], found: Mapping[str, Any],
    responses: Sequence[Mapping[str, Any]], task: Any) -> dict[str, Any]:
  """Returns the saved part of a run.

  Args:
    rows: rows of metrics.jsonl, one for each step.
    found: result of the evaluation.
    responses: its responses, with 'problem_id' and 'reward'.
    task: section of the config.

  Returns:
    Dictionary with the keys of FIGURES, and 'curve', the cumulative solve rate.
  """
  rewards = collections.defaultdict(list)
  for response in responses:
    rewards[response['problem_id']].append(response['reward'])
  hard = [kind for kind, share in zip(task.kinds, task.solved) if share < HARD]
  mean = lambda name: statistics.fmean(row[name] for row in rows[-LAST:])
  numbers = {
      'solved': rows[-1]['solve_rate'],
      'solved_hard': statistics.fmean(
          rows[-1][f'solve_rate/{kind}'] for kind in hard),
      **{f'pass@{k}': found[f'pass@{k}'] for k in KS},
      **{f'best@{k}': statistics.fmean(
          best_of(row, k) for row in rewards.values()) for k in KS},
      'reward': mean('reward/mean'), 'entropy': mean('response/entropy')}
  return {
      **{name: round(value, 4) for name, value in numbers.items()},
      'curve': [round(row['solve_rate'], 4) for row in rows[EVERY - 1::EVERY]]}


def by_arm(results: Sequence[Result]) -> dict[str, list[Result]]:
  """Groups the results by arm, in the order of LABELS."""
  arms = {arm: [r for r in results if r['arm'] == arm] for arm in LABELS}
  return {arm: found for arm, found in arms.items() if found}


def difference(
    results: Sequence[Result], figure: str, arm: str, other: str) -> str:
  """Formats the mean difference of two arms, paired by seed, and its interval.
  """
  by_seed = {(r['arm'], r['seed']): r[figure] for r in results}
  gaps = [by_seed[arm, seed] - by_seed[other, seed]
          for seed in sorted({r['seed'] for r in results})
          if {(arm, seed), (other, seed)} <= by_seed.keys()]
  if len(gaps) < 2:
    return ''
  mean = statistics.fmean(gaps)
  half = T95[len(gaps) - 1] * statistics.stdev(gaps) / len(gaps) ** 0.5
  text = f'{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]'
  return text if abs(mean) > half else f'{text}, not distinguishable'


def table(results: Sequence[Result]) -> str:
  """Returns the table with one row per arm."""
  rows = [
      [LABELS[arm], str(len(found)),
       *(mean_and_error([r[figure] for r in found]) for figure in FIGURES)]
      for arm, found in by_arm(results).items()]
  return markdown(['', 'seeds', *FIGURES.values()], rows)


def differences(results: Sequence[Result]) -> str:
  """Returns the table of k=8 against every other arm."""
  others = [arm for arm in by_arm(results) if arm != '8']
  rows = [[FIGURES[figure], *(
      difference(results, figure, '8', other) for other in others)]
          for figure in FIGURES if figure not in ('reward', 'entropy')]
  return markdown(
      ['k=8 minus', *(LABELS[other] for other in others)], rows)


def report(results: Sequence[Result], command: str) -> str:
  """Returns the report as Markdown."""
  different = lambda key: sorted({result[key] for result in results})
  steps, seeds = results[0]['steps'], len(different('seed'))
  return f'''# PKPO with a continuous reward: ARC-mini

`{command}`, {' to '.join(different('date'))}, \
{' and '.join(different('machine'))}.

configs/pkpo/arc_mini.py: a model of 0.09 million parameters on puzzles of a \
dozen rules, reward the share of right cells, 16 samples a prompt, {steps} \
steps of 16 prompts; {seeds} seeds, on which nothing was chosen. All arms have \
the same steps, warm start and numbers of samples, and but for one the same \
learning rate, 5e-4; k=1 is leave-one-out. "Solved so far" is the share of \
training problems with a right sample in some step, "of the hard rules" that \
of rules that few demonstrations of the warm start apply. pass@k (all cells \
right) and best of k (mean of the largest reward) are unbiased, from {SAMPLES} \
samples of each held-out problem. "Not trained" samples from the warm start as \
often as the others do in training. Mean and standard error over seeds.

The paper (Tables 5 and 6, ARC-AGI-1, Gemma2-9B and Llama3.1-8B) reports 12% \
and 22% solved with k=1, 84% and 89% with k=8.

![cumulative solve rate and best of k]({RESULT.with_suffix('.png').name})

{table(results)}

Mean differences over the seeds that both arms have, paired, with 95% \
intervals (Student's t):

{differences(results)}
'''


def draw(results: Sequence[Result], path: pathlib.Path) -> None:
  """Draws the cumulative solve rate by step, and best of k by k."""
  import matplotlib
  from matplotlib.figure import Figure as Canvas
  looks = {
      'frozen': dict(color='black', linestyle=':'), '1': dict(color='#8ab6d6'),
      '8': dict(color='#1f5f99'), '16': dict(color='#0b2540'),
      'half': dict(color='#8ab6d6', linestyle='--'),
      'entropy': dict(color='#d1495b', linestyle='--')}
  with matplotlib.rc_context(STYLE):
    figure = Canvas(figsize=(10, 3.8), dpi=130, layout='constrained')
    left, middle, right = figure.subplots(1, 3)
    for arm, found in by_arm(results).items():
      curve = [statistics.fmean(values)
               for values in zip(*(r['curve'] for r in found))]
      left.plot(range(EVERY, EVERY * len(curve) + 1, EVERY), curve,
                label=LABELS[arm], **looks[arm])
      for axes, name in ((middle, 'pass'), (right, 'best')):
        axes.plot(KS, [statistics.fmean(r[f'{name}@{k}'] for r in found)
                       for k in KS], marker='o', markersize=3, **looks[arm])
    left.set(xlabel='step', ylabel='solved so far', ylim=(0, None))
    for axes, name in ((middle, 'held-out pass@k'),
                       (right, 'held-out best of k')):
      axes.set_xscale('log', base=2)
      axes.set_xticks(KS, map(str, KS))
      axes.set(xlabel='k', ylabel=name)
    left.legend()
    figure.savefig(path)
