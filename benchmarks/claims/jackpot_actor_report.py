"""Numbers, tables and plots of the claims about another model's responses."""

import pathlib
import statistics
from typing import Any, Mapping, Sequence

from benchmarks.claims.pkpo_report import mean_and_error
from benchmarks.rl_step import markdown
from jaxrl_llm.monitoring.plots import STYLE

Result = Mapping[str, Any]

RESULT = pathlib.Path(__file__).parents[1] / 'results/claims/jackpot_actor.md'
PART = 8  # updates that a point of a curve is a mean of

LABELS = {
    'on_policy': 'on-policy, no actor',
    'jackpot': 'Jackpot, PPO and distillation of the actor',
    'none': 'no correction, the same actor',
    'tis': 'TIS, the same actor',
    'distill': 'no correction, distillation alone',
    'frozen_none': 'no correction, frozen actor',
    'frozen_jackpot': 'Jackpot, frozen actor',
    'float8_none': 'float8 weights and KV, no correction',
    'float8_tis': 'float8 weights and KV, TIS',
    'float8_jackpot': 'float8 weights and KV, Jackpot',
}
CURVES = {
    'reward/mean': 'reward', 'update/actor_kl': 'actor_kl',
    'update/behaviour_gap': 'gap', 'update/obrs_acceptance': 'acceptance',
    'update/obrs_kl_before': 'kl_before', 'update/obrs_kl_after': 'kl_after'}


def numbers_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the saved part of a run's metrics.

  Args:
    rows: rows of metrics.jsonl, one for each update.

  Returns:
    Dictionary with 'updates', 'pass@1' and 'error' of the evaluations, and
    curves of means over PART updates, see CURVES.
  """
  evaluated = [row for row in rows if 'eval/pass@1' in row]
  found = {
      'updates': [row['step'] for row in evaluated],
      'pass@1': [round(row['eval/pass@1'], 4) for row in evaluated],
      'error': round(evaluated[-1]['eval/pass@1_error'], 4)}
  for metric, name in CURVES.items():
    values = [row[metric] for row in rows if metric in row]
    found[name] = [
        float(f'{statistics.fmean(values[i:i + PART]):.4g}')
        for i in range(0, len(values), PART)]
  return found


def by_arm(results: Sequence[Result]) -> dict[str, list[Result]]:
  """Groups results by arm."""
  return {arm: found for arm in LABELS if (
      found := [result for result in results if result['arm'] == arm])}


def table(arms: Mapping[str, list[Result]]) -> str:
  """Returns the table of all arms."""
  rows = []
  for arm, found in arms.items():
    ends = [r['pass@1'][-1] for r in found]
    cells = [LABELS[arm], mean_and_error(ends), mean_and_error(
        [end - r['pass@1'][0] for end, r in zip(ends, found)]),
        mean_and_error([max(r['pass@1']) for r in found]),
        f'{statistics.fmean(r["reward"][-1] for r in found):.2f}']
    for name in ('gap', 'acceptance', 'actor_kl', 'kl_before', 'kl_after'):
      values = [statistics.fmean(r[name]) for r in found if r[name]]
      cells.append(f'{statistics.fmean(values):.3g}' if values else '')
    rows.append(cells)
  return markdown(
      ['', 'pass@1 at the end', 'above the start', 'highest',
       'reward at the end', 'log-prob error', 'acceptance',
       'KL(policy, actor)', 'KL before', 'KL after'], rows)


def claims(arms: Mapping[str, list[Result]]) -> str:
  """Returns the differences between arms, paired by seed."""
  def gain(arm, other=None):
    pairs = [(r, r['pass@1'][0] if other is None else next(
        o for o in arms[other] if o['seed'] == r['seed'])['pass@1'][-1])
             for r in arms[arm]]
    return mean_and_error([r['pass@1'][-1] - base for r, base in pairs])

  rows = [('Jackpot, above its start', gain('jackpot'))]
  rows += [(f'{LABELS[arm]}, above {LABELS[other]}', gain(arm, other))
           for arm, other in (
               ('jackpot', 'none'), ('jackpot', 'tis'), ('tis', 'none'),
               ('jackpot', 'distill'), ('jackpot', 'frozen_jackpot'),
               ('frozen_jackpot', 'frozen_none'), ('jackpot', 'on_policy'),
               ('float8_none', 'on_policy'), ('float8_tis', 'float8_none'),
               ('float8_jackpot', 'float8_none'))]
  return markdown(['pass@1 at the end', 'difference'], rows)


def report(results: Sequence[Result], command: str) -> str:
  """Returns the report as Markdown."""
  different = lambda key: sorted({result[key] for result in results})
  start = mean_and_error([
      r['pass@1'][0] for r in results if r['arm'] == 'on_policy'])
  error = statistics.fmean(r['error'] for r in results)
  arms = by_arm(results)
  return f'''# Jackpot: another model writes the responses

`{command}`, {' to '.join(different('date'))}, \
{' and '.join(different('machine'))}.

configs/jackpot/countdown_actor.py: a policy of 0.28 million parameters on \
Countdown, 384 updates of 256 responses, GRPO without entropy bonus, after a \
warm-up of 32 updates. The actor has a width of 64 and 2 layers. \
{len(different('seed'))} seeds, mean ± standard error over seeds. pass@1 is \
measured on 532 held-out problems with the policy, not quantised; its standard \
error is {error:.3f} in each run, and before training it is {start}. The \
reward is of the responses that are trained on. The log-prob error is the mean \
of |log p_ref - log p_inf| over tokens; KL(policy, actor) is the distillation \
loss; the last two columns are KL(p_inf || p_new) before and after rejection. \
These columns are means over the run.

![pass@1 and KL by updates]({RESULT.with_suffix('.png').name})

{claims(arms)}

{table(arms)}
'''


def draw(results: Sequence[Result], path: pathlib.Path) -> None:
  """Draws pass@1 and KL by updates."""
  import matplotlib
  from matplotlib.figure import Figure
  shown = {'on_policy': ('0.5', ':'), 'none': ('C3', '-'), 'tis': ('C1', '-'),
           'distill': ('C4', '--'), 'jackpot': ('C2', '-'),
           'frozen_none': ('C3', ':'), 'frozen_jackpot': ('C2', ':')}
  eighth = {'on_policy': ('0.5', ':'), 'float8_none': ('C3', '-'),
            'float8_tis': ('C1', '-'), 'float8_jackpot': ('C2', '-')}
  arms = by_arm(results)
  mean = lambda arm, name: [
      statistics.fmean(x) for x in zip(*(r[name] for r in arms[arm]))]
  with matplotlib.rc_context(STYLE):
    figure = Figure(figsize=(15, 4.5), dpi=120, layout='constrained')
    left, middle, right = figure.subplots(1, 3)
    for axes, chosen, title in (
        (left, shown, 'A smaller actor'), (right, eighth, 'float8 sampling')):
      for arm, (color, line) in chosen.items():
        axes.plot(arms[arm][0]['updates'], mean(arm, 'pass@1'), color=color,
                  linestyle=line, label=LABELS[arm])
      axes.set(xlabel='updates', ylabel='held-out pass@1', ylim=(0, .65),
               title=title)
      axes.legend(fontsize=7, loc='upper left')
    for arm in ('none', 'tis', 'distill', 'jackpot', 'frozen_jackpot'):
      curve = mean(arm, 'actor_kl')
      middle.plot([PART * (i + .5) for i in range(len(curve))], curve,
                  color=shown[arm][0], linestyle=shown[arm][1],
                  label=LABELS[arm])
    middle.set(xlabel='updates', ylabel='KL(policy || actor), nats',
               yscale='log', title='Distance of the actor')
    figure.savefig(path)
