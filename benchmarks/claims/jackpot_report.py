"""Numbers, tables and plots of Jackpot's claims."""

import pathlib
import statistics
from typing import Any, Iterable, Mapping, Sequence

from benchmarks.claims.pkpo_report import mean_and_error
from benchmarks.rl_step import markdown
from jaxrl_llm.monitoring.plots import STYLE

Result = Mapping[str, Any]

RESULT = pathlib.Path(__file__).parents[1] / 'results/claims/jackpot.md'
PART = 8  # updates that a point of a curve is a mean of
COLLAPSE = 0.5  # of the pass@1 before training

LABELS = {
    'on_policy': 'on-policy',
    'no_clip': 'no clip, no correction',
    'clip': 'clip (PPO)',
    'no_clip_tis': 'no clip, TIS with min(p_new / p_old, 2)',
    'jackpot': 'no clip, Jackpot',
    'jackpot_clip': 'clip, Jackpot',
    'mask': 'no clip, mask alone',
    'weights': 'no clip, weights alone',
    'expected': 'no clip, Jackpot with the expected mask',
    'all': 'no clip, Jackpot divided by all tokens',
}
CURVES = {
    'obrs_kl_before': 'kl_before', 'obrs_kl_after': 'kl_after',
    'obrs_acceptance': 'acceptance', 'obrs_kappa': 'kappa',
    'obrs_at_c1': 'at_c1', 'obrs_rejected_positive': 'rejected_positive',
    'obrs_rejected_negative': 'rejected_negative'}


def numbers_of(
    rows: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]],
    stale: int) -> dict[str, Any]:
  """Returns the saved part of a run's metrics.

  Args:
    rows: rows of metrics.jsonl.
    updates: metrics of each optimiser step.
    stale: optimiser steps of a row.

  Returns:
    Dictionary with 'updates', 'pass@1' and 'error' of the evaluations,
    'entropy' of the last step's responses, and curves of means over PART
    updates, see CURVES.
  """
  evaluated = [row for row in rows if 'eval/pass@1' in row]
  found = {
      'updates': [row['step'] * stale for row in evaluated],
      'pass@1': [round(row['eval/pass@1'], 4) for row in evaluated],
      'error': round(evaluated[-1]['eval/pass@1_error'], 4),
      'entropy': round(rows[-1]['response/entropy'], 4)}
  for metric, name in CURVES.items():
    values = [float(update[metric]) for update in updates if metric in update]
    found[name] = [
        float(f'{statistics.fmean(values[i:i + PART]):.4g}')
        for i in range(0, len(values), PART)]
  return found


def collapse(result: Result) -> int | None:
  """Returns the updates at the first evaluation below half of the start."""
  for updates, value in zip(result['updates'], result['pass@1']):
    if value < COLLAPSE * result['pass@1'][0]:
      return updates
  return None


def by_arm(results: Iterable[Result], stale: int) -> dict[str, list[Result]]:
  """Groups the results of a staleness by arm, the on-policy ones too."""
  arms: dict[str, list[Result]] = {arm: [] for arm in LABELS}
  for result in results:
    if result['stale'] in (1, stale):
      arms[result['arm']].append(result)
  return {arm: found for arm, found in arms.items() if found}


def table(arms: Mapping[str, list[Result]]) -> str:
  """Returns the table of a staleness."""
  rows = []
  for arm, found in arms.items():
    ends = [r['pass@1'][-1] for r in found]
    collapsed = [str(collapse(r)) for r in found if collapse(r)]
    cells = [LABELS[arm], mean_and_error(ends), mean_and_error(
        [end - r['pass@1'][0] for end, r in zip(ends, found)]),
        mean_and_error([max(r['pass@1']) for r in found]),
        ', '.join(collapsed) or 'none',
        f'{statistics.fmean(r["entropy"] for r in found):.2f}']
    for name in ('acceptance', 'kl_before', 'kl_after', 'at_c1',
                 'rejected_positive', 'rejected_negative'):
      values = [statistics.fmean(r[name]) for r in found if r[name]]
      cells.append(f'{statistics.fmean(values):.3f}' if values else '')
    rows.append(cells)
  return markdown(
      ['', 'pass@1 at the end', 'above the start', 'highest',
       'updates at collapse, by seed', 'entropy', 'acceptance', 'KL before',
       'KL after', 'at c1', 'rejected, positive', 'rejected, negative'], rows)


def claims(arms: Mapping[str, list[Result]]) -> str:
  """Returns the differences between arms, paired by seed."""
  def gain(arm, other=None):
    return mean_and_error([
        r['pass@1'][-1] - (
            r['pass@1'][0] if other is None else next(
                o for o in arms[other] if o['seed'] == r['seed'])['pass@1'][-1])
        for r in arms[arm]])

  rows = [('no correction, above its start', gain('no_clip')),
          ('Jackpot, above its start', gain('jackpot'))]
  rows += [(f'Jackpot, above {text}', gain('jackpot', arm)) for arm, text in (
      ('no_clip', 'no correction'), ('no_clip_tis', 'TIS'),
      ('clip', 'clipped PPO'), ('mask', 'the mask alone'),
      ('weights', 'the weights alone'), ('expected', 'the expected mask'),
      ('all', 'division by all tokens'))]
  rows.append((
      'Jackpot with clipping, above clipped PPO', gain('jackpot_clip', 'clip')))
  return markdown(['pass@1 at the end', 'difference'], rows)


def report(results: Sequence[Result], command: str) -> str:
  """Returns the report as Markdown."""
  different = lambda key: sorted({result[key] for result in results})
  start = mean_and_error([
      r['pass@1'][0] for r in results if r['arm'] == 'on_policy'])
  error = statistics.fmean(r['error'] for r in results)
  parts = ''.join(f'''
## {stale} updates on the rollouts of one policy

{claims(by_arm(results, stale))}

{table(by_arm(results, stale))}
''' for stale in (32, 64))
  return f'''# Jackpot: learning from stale rollouts

`{command}`, {' to '.join(different('date'))}, \
{' and '.join(different('machine'))}.

configs/jackpot/countdown.py: a model of 0.28 million parameters on Countdown, \
192 updates of 256 responses, GRPO without entropy bonus, learning rate 3e-4 \
after a warm-up of 32 updates. \
{len(different('seed'))} seeds, mean ± standard error over seeds. pass@1 is \
measured on 532 held-out problems, with a standard error of {error:.3f} in \
each run; before training it is {start}. A run collapses at the first \
evaluation below half of its start. TIS is `cispo` with these bounds, which \
has the same gradient. KL is of the behaviour to the policy in training, \
before and after rejection; acceptance, the share of weights at c1, and the \
tokens rejected by sign of the advantage are shares of all tokens. All of \
these are means over the run.

![pass@1 and KL by updates]({RESULT.with_suffix('.png').name})
{parts}'''


def draw(results: Sequence[Result], path: pathlib.Path) -> None:
  """Draws pass@1 and KL by updates at both staleness."""
  import matplotlib
  from matplotlib.figure import Figure
  shown = {'on_policy': ('0.5', ':'), 'no_clip': ('C3', '-'),
           'clip': ('C0', '-'), 'no_clip_tis': ('C1', '-'),
           'jackpot': ('C2', '-'), 'expected': ('C2', '--'),
           'mask': ('C4', '--'), 'weights': ('C5', '--')}
  mean = lambda runs, name: [
      statistics.fmean(x) for x in zip(*(r[name] for r in runs))]
  with matplotlib.rc_context(STYLE):
    figure = Figure(figsize=(13, 7), dpi=120, layout='constrained')
    for (left, right), stale in zip(figure.subplots(2, 2), (32, 64)):
      arms = by_arm(results, stale)
      for arm, (color, line) in shown.items():
        left.plot(arms[arm][0]['updates'], mean(arms[arm], 'pass@1'),
                  color=color, linestyle=line, label=LABELS[arm])
      left.set(xlabel='updates', ylabel='held-out pass@1', ylim=(0, .65))
      left.set_title(f'{stale} updates per rollout batch')
      for arm in ('jackpot', 'mask', 'weights'):
        for name, line in (('kl_before', '-'), ('kl_after', '--')):
          curve = mean(arms[arm], name)
          x = [PART * (i + .5) for i in range(len(curve))]
          right.plot(
              x, curve, color=shown[arm][0], linestyle=line,
              label=f'{LABELS[arm]}, {name.removeprefix("kl_")} rejection')
      right.set(xlabel='updates', ylabel='KL(behaviour || policy), nats',
                yscale='log', ylim=(1e-4, 200))
      right.set_title('Distance of the rollouts')
    for axes in figure.axes[:2]:
      axes.legend(fontsize=7, ncols=2, loc='upper left')
    figure.savefig(path)
