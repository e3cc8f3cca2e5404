"""Numbers, tables and plots of CBS's claims."""

import pathlib
import statistics
from typing import Any, Iterable, Mapping, Sequence

from benchmarks.claims.pkpo_report import mean_and_error
from benchmarks.rl_step import markdown
from jaxrl_llm.monitoring.plots import STYLE
from jaxrl_llm.selection.bandit import FEATURES

Result = Mapping[str, Any]

RESULT = pathlib.Path(__file__).parents[1] / 'results/claims/cbs.md'
WARM = 3  # first steps, which compile
LAST = 3  # evaluations that the figure at the end is a mean of

OBJECTIVES = {'grpo': 'GRPO', 'dapo': 'DAPO', 'gspo': 'GSPO'}
ARMS = {
    'all': 'all responses',
    'cbs': 'CBS', 'random': 'random, global',
    'cbs_intra': 'CBS*', 'random_intra': 'random, 64 of 256',
    'raw_gain': 'CBS, raw gain', 'no_entropy': 'CBS, no entropy penalty'}


def numbers_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the saved part of a run's metrics.

  Args:
    rows: rows of metrics.jsonl.

  Returns:
    Dictionary with 'samples', 'pass@1' and 'pass@8' of the evaluations; 'error'
    of the last pass@1; medians of the seconds of phases of a step; means over
    the second half of the steps, of metrics that are there.
  """
  evaluated = [row for row in rows if 'eval/pass@1' in row]
  steps = rows[1:]
  sampled = [0.0]
  for row in steps:
    sampled.append(sampled[-1] + row['response/count'])
  updated = [row for row in steps[WARM:] if row['batch/rounds']]
  found = {
      'samples': [sampled[row['step']] for row in evaluated],
      'pass@1': [round(row['eval/pass@1'], 4) for row in evaluated],
      'pass@8': [round(row['eval/pass@8'], 4) for row in evaluated],
      'error': round(evaluated[-1]['eval/pass@1_error'], 4),
      'seconds': {name: round(statistics.median(
          row[f'seconds/{name}'] for row in updated), 5)
          for name in ('step', 'sample', 'score', 'update', 'select')}}
  for name in (
      'response/entropy', 'batch/rows', 'batch/replayed', 'batch/age',
      'batch/usage', 'batch/staleness', 'update/clip_low', 'update/clip_high',
      'cbs/gain', 'cbs/entropy_penalty', 'cbs/loss',
      *(f'cbs/correlation/{feature}' for feature in FEATURES)):
    values = [row[name] for row in steps[len(steps) // 2:]
              if row.get(name) is not None]
    if values:
      found[name] = float(f'{statistics.fmean(values):.4g}')
  return found


def end(result: Result) -> float:
  """Returns the pass@1 at the end, a mean of the last evaluations."""
  return statistics.fmean(result['pass@1'][-LAST:])


def by_arm(results: Iterable[Result], objective: str) -> dict[
    str, list[Result]]:
  """Groups the results of an objective by arm, in the order of ARMS."""
  arms: dict[str, list[Result]] = {arm: [] for arm in ARMS}
  for result in results:
    if result['objective'] == objective:
      arms[result['arm']].append(result)
  return {arm: found for arm, found in arms.items() if found}


def _above(
    arms: Mapping[str, list[Result]], arm: str, other: str) -> str:
  """Returns the difference at the end, paired by seed."""
  ends = {result['seed']: end(result) for result in arms[other]}
  return mean_and_error([end(r) - ends[r['seed']] for r in arms[arm]])


def table(arms: Mapping[str, list[Result]]) -> str:
  """Returns the table of an objective."""
  rows = []
  for arm, found in arms.items():
    same = {'cbs_intra': 'random_intra', 'random_intra': ''}.get(arm, 'random')
    mean = lambda name, found=found: statistics.fmean(
        r.get(name, 0.0) for r in found)
    of_seconds = lambda name, found=found: statistics.fmean(
        r['seconds'][name] for r in found)
    rows.append([
        ARMS[arm], mean_and_error([end(r) for r in found]),
        '' if arm == 'all' else _above(arms, arm, 'all'),
        '' if same in ('', arm) or arm == 'all' else _above(arms, arm, same),
        mean_and_error([r['pass@8'][-1] for r in found]),
        f'{mean("response/entropy"):.2f}', f'{mean("batch/rows"):.0f}',
        f'{mean("batch/replayed"):.2f}', f'{mean("batch/usage"):.2f}',
        *(f'{of_seconds(name) * 1e3:.0f}' for name in ('update', 'score')),
        f'{of_seconds("select") * 1e3:.1f}',
        f'{of_seconds("select") / of_seconds("step"):.1%}'])
  return markdown(
      ['', 'pass@1 at the end', 'above all responses', 'above random',
       'pass@8 at the end', 'entropy', 'rows of a step', 'replayed',
       'used before', 'update, ms', 'score, ms', 'selection, ms',
       'selection, share of a step'], rows)


def bandit(arms: Mapping[str, list[Result]]) -> str:
  """Returns the table of what the bandit saw and learned."""
  rows = []
  for arm, found in arms.items():
    if 'cbs/gain' in found[0]:
      rows.append([ARMS[arm], *(
          f'{statistics.fmean(r[name] for r in found):.2f}'
          if all(name in r for r in found) else ''
          for name in ('cbs/gain', 'cbs/entropy_penalty', 'cbs/loss', *(
              f'cbs/correlation/{feature}' for feature in FEATURES)))])
  return markdown(
      ['', 'gain', 'entropy penalty', 'loss', *FEATURES], rows)


def report(results: Sequence[Result], command: str) -> str:
  """Returns the report as Markdown."""
  different = lambda key: sorted({result[key] for result in results})
  start = mean_and_error([
      r['pass@1'][0] for r in results
      if (r['objective'], r['arm']) == ('grpo', 'all')])
  error = statistics.fmean(r['error'] for r in results)
  parts = ''
  for objective, name in OBJECTIVES.items():
    arms = by_arm(results, objective)
    parts += f'\n## {name}\n\n{table(arms)}\n'
    parts += f'\nThe bandit in the second half of the run:\n\n{bandit(arms)}\n'
  return f'''# CBS: which rollouts to train on

`{command}`, {' to '.join(different('date'))}, \
{' and '.join(different('machine'))}.

configs/cbs/countdown.py: a model of 0.28 million parameters on Countdown, 120 \
steps of 32 prompts with 8 samples, mini-batches of 64 responses, learning \
rate 4e-4. {len(different('seed'))} seeds, mean ± standard error over seeds; \
differences are paired by seed. pass@1 is measured on 532 held-out problems \
and averaged over the last {LAST} evaluations, each with a standard error of \
{error:.3f} within a run; before training it is {start}.

"CBS" picks 256 of the 512 responses of the last two batches, "random, global" \
draws as many of them. "CBS*" picks 2 of the 8 responses to each prompt, and \
"random, 64 of 256" as many of the whole batch: both take one update where the \
others take four. "replayed" is the share of rows of an earlier batch, "used \
before" the mean number of rounds that had trained on a row. Milliseconds are \
medians over steps on one core that other runs slow down. Columns of the \
bandit are means: both terms of its reward (Eq. 10), its loss, and the \
correlation of scores and features (Fig. 9).

![pass@1 by sampled responses]({RESULT.with_suffix('.png').name})
{parts}'''


def draw(results: Sequence[Result], path: pathlib.Path) -> None:
  """Draws the mean pass@1 of each arm against the sampled responses."""
  import matplotlib
  from matplotlib.figure import Figure
  lines = {'all': ('0.5', '-'), 'cbs': ('C0', '-'), 'random': ('C0', ':'),
           'cbs_intra': ('C1', '-'), 'random_intra': ('C1', ':'),
           'raw_gain': ('C2', '--'), 'no_entropy': ('C3', '--')}
  with matplotlib.rc_context(STYLE):
    figure = Figure(figsize=(14, 4), dpi=130, layout='constrained')
    for axes, (objective, name) in zip(
        figure.subplots(1, 3, sharey=True), OBJECTIVES.items()):
      for arm, found in by_arm(results, objective).items():
        color, line = lines[arm]
        axes.plot(
            found[0]['samples'],
            [statistics.fmean(x) for x in zip(*(r['pass@1'] for r in found))],
            color=color, linestyle=line, label=ARMS[arm])
      axes.set(title=name, xlabel='sampled responses')
    figure.axes[0].set_ylabel('held-out pass@1')
    figure.axes[0].legend()
    figure.savefig(path)
