"""Numbers, table and plot of the run with all four methods."""

import pathlib
import statistics
from typing import Any, Iterable, Mapping, Sequence

from benchmarks.claims.pkpo_report import mean_and_error
from benchmarks.rl_step import markdown
from jaxrl_llm.monitoring.plots import STYLE

Result = Mapping[str, Any]

RESULT = pathlib.Path(__file__).parents[1] / 'results/claims/all_four.md'
LAST = 3  # evaluations that the figures at the end are means of
MEANS = ('response/entropy', 'batch/staleness', 'batch/replayed',
         'update/behaviour_gap', 'update/obrs_kept', 'seconds/step')

ARMS = {
    'all_four': 'all four', 'no_speed': 'without SPEED',
    'no_pkpo': 'without PKPO (GRPO)', 'no_cbs': 'without CBS',
    'no_jackpot': 'without Jackpot', 'none': 'none of the four',
    'none_fresh': 'none, full precision, no lag'}


def numbers_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the saved part of a run's metrics.

  Args:
    rows: rows of metrics.jsonl.

  Returns:
    Dictionary with 'samples', 'gflops', 'pass@1' and 'pass@8' of the
    evaluations, 'error' of the last pass@1, and means over the steps, see
    MEANS.
  """
  steps, curve = rows[1:], {
      name: [] for name in ('samples', 'gflops', 'pass@1', 'pass@8')}
  samples = gflops = 0.0
  for row in rows:
    samples += row.get('response/count', 0)
    gflops += row.get('speed/flops', 0) / 1e9
    if 'eval/pass@1' in row:
      curve['samples'].append(samples)
      curve['gflops'].append(round(gflops, 1))
      for name in ('pass@1', 'pass@8'):
        curve[name].append(round(row[f'eval/{name}'], 4))
  found = {**curve, 'error': round(rows[-1]['eval/pass@1_error'], 4)}
  for name in MEANS:
    values = [row[name] for row in steps if row.get(name) is not None]
    if values:
      found[name] = float(f'{statistics.fmean(values):.4g}')
  return found


def end(result: Result, name: str = 'pass@1') -> float:
  """Returns a figure at the end, a mean of the last evaluations."""
  return statistics.fmean(result[name][-LAST:])


def by_arm(results: Iterable[Result]) -> dict[str, list[Result]]:
  """Groups the results by arm, in the order of ARMS."""
  arms: dict[str, list[Result]] = {arm: [] for arm in ARMS}
  for result in results:
    arms[result['arm']].append(result)
  return {arm: found for arm, found in arms.items() if found}


def table(arms: Mapping[str, list[Result]]) -> str:
  """Returns the table of the arms."""
  rows, whole = [], {r['seed']: r for r in arms['all_four']}
  for arm, found in arms.items():
    mean = lambda name, found=found: statistics.fmean(
        r.get(name, float('nan')) for r in found)
    rows.append([
        ARMS[arm], *(mean_and_error([end(r, name) for r in found])
                     for name in ('pass@1', 'pass@8')),
        '' if arm == 'all_four' else mean_and_error(
            [end(r) - end(whole[r['seed']]) for r in found]),
        f'{statistics.fmean(r["samples"][-1] for r in found):,.0f}',
        f'{statistics.fmean(r["gflops"][-1] for r in found):,.0f}',
        *(f'{mean(name):.3g}' if all(name in r for r in found) else ''
          for name in MEANS)])
  return markdown(
      ['', 'pass@1', 'pass@8', 'pass@1, above all four', 'samples', 'GFLOP',
       'entropy', 'staleness, updates', 'replayed',
       'gap to the behaviour, nats', 'kept by OBRS', 's per step'], rows)


def report(results: Sequence[Result], command: str) -> str:
  """Returns the report as Markdown."""
  different = lambda key: sorted({result[key] for result in results})
  start = {name: mean_and_error([
      r[name][0] for r in results if r['arm'] == 'all_four'])
      for name in ('pass@1', 'pass@8')}
  return f'''# All four methods in one run

`{command}`, {' to '.join(different('date'))}, \
{' and '.join(different('machine'))}.

configs/all_four.py: a model of 0.28 million parameters on Countdown. SPEED \
screens 64 prompts a step, PKPO's k falls from 4 to 1, CBS picks 256 responses \
of the last two batches, Jackpot corrects for a policy with 8-bit weights that \
is a step old. Each arm leaves one method out, with about the same number of \
samples. "gap" is the mean difference of a token's log-probs under the trainer \
and the sampler. {len(different('seed'))} seeds, mean ± standard error over \
seeds; differences are paired by seed. pass@1 and pass@8 are measured on 224 \
held-out problems with 8 samples each and averaged over the last {LAST} \
evaluations, each with a standard error of \
{statistics.fmean(r['error'] for r in results):.3f} within a run. Before \
training they are {start['pass@1']} and {start['pass@8']}.

{table(by_arm(results))}

![pass@1 and pass@8 by samples]({RESULT.with_suffix('.png').name})
'''


def draw(results: Sequence[Result], path: pathlib.Path) -> None:
  """Draws the mean pass@1 and pass@8 of each arm against the samples."""
  import matplotlib
  from matplotlib.figure import Figure
  with matplotlib.rc_context(STYLE):
    figure = Figure(figsize=(12, 4), dpi=130, layout='constrained')
    for axes, name in zip(figure.subplots(1, 2), ('pass@1', 'pass@8')):
      for i, (arm, found) in enumerate(by_arm(results).items()):
        x, y = ([statistics.fmean(values) for values in zip(*(
            r[key] for r in found))] for key in ('samples', name))
        axes.plot(x, y, color=f'C{i}', label=ARMS[arm],
                  linewidth=2.5 if arm == 'all_four' else 1.2)
      axes.set(xlabel='sampled responses', ylabel=f'held-out {name}')
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path)
