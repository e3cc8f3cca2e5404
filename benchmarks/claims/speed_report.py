"""Numbers, tables and plots of SPEED's claims."""

import pathlib
import statistics
from typing import Any, Callable, Iterable, Mapping, Sequence

from benchmarks.claims.pkpo_report import mean_and_error
from benchmarks.rl_step import markdown
from jaxrl_llm.monitoring.plots import STYLE

Row = Mapping[str, Any]
Result = Mapping[str, Any]

RESULT = pathlib.Path(__file__).parents[1] / 'results/claims/speed.md'
WARM = 3  # first steps, which compile; each counts as the median step
SMOOTH = 3  # evaluations that an accuracy is averaged over
# The targets, above the figure before training; pass@8 is that of PKPO.
RISES = {'pass@1': 0.15, 'pass@8': 0.02}
SHARES = 2 / 3, 0.9  # of generation in RLOO's time, where it dominates

LABELS = {
    'rloo': 'RLOO', 'speed_rloo_4': 'SPEED-RLOO, 4 + 12',
    'speed_rloo_6': 'SPEED-RLOO, 6 + 10', 'speed_rloo_8': 'SPEED-RLOO, 8 + 8',
    'rloo_drop': 'RLOO, zero-variance prompts dropped',
    'dapo': 'DAPO (dynamic sampling)', 'speed_dapo_4': 'SPEED-DAPO, 4 + 12',
    **{f'pkpo{k}{suffix}': f'PKPO k={k}, {text}' for k in (8, 4)
       for suffix, text in (('', 'no screen'), ('_pass_rate', "paper's rule"),
                            ('_signal', 'rule "signal"'))},
    'start': 'all 16', 'start_4': '4 + 12', 'start_6': '6 + 10',
    'start_8': '8 + 8'}
AT_START = [arm for arm in LABELS if 'start' in arm]
PKPO = [arm for arm in LABELS if 'pkpo' in arm]
OTHERS = [arm for arm in LABELS if arm not in AT_START + PKPO]


def numbers_of(rows: Sequence[Row]) -> dict[str, Any]:
  """Returns the saved part of a run's metrics.

  Args:
    rows: rows of metrics.jsonl.

  Returns:
    Dictionary with 'curve': for each evaluation the sums up to it, and its
    pass@1 and pass@8; 'signal': sum of |advantage| of the complete groups;
    'informative': complete groups with signal; 'phases': for each phase, the
    seconds and tokens of each step that follows the first ones; 'grad_norm' and
    'staleness': means over the steps with an update.
  """
  steps = rows[1:]
  usual = statistics.median(row['seconds/step'] for row in steps[WARM:])
  sums = dict.fromkeys(
      ('samples', 'updates', 'gflops', 'seconds', 'generated', 'trained'), 0.0)
  curve, signal, informative = [], 0.0, 0.0
  phases: dict[str, list[tuple[float, float]]] = {
      'sample': [], 'update': [], 'score': [], 'other': []}
  for number, row in enumerate(rows):
    if number:
      generated = row['response/count'] * (row['response/length'] or 0)
      trained = row.get('update/tokens') or 0
      sums['samples'] += row['response/count']
      sums['updates'] += row['batch/rounds']
      sums['gflops'] += row['speed/flops'] / 1e9
      sums['seconds'] += row['seconds/step'] if number > WARM else usual
      sums['generated'] += generated
      sums['trained'] += trained
      groups = row.get('screening/continued', row['response/count'] / 16)
      signal += row['reward/signal']
      informative += groups * (1 - (row['reward/no_signal'] or 0))
      if number > WARM:
        phase = {name: row[f'seconds/{name}']
                 for name in ('sample', 'update', 'score')}
        phases['sample'].append((phase['sample'], generated))
        phases['update'].append((phase['update'], trained))
        phases['score'].append((phase['score'], trained))
        phases['other'].append(
            (row['seconds/step'] - sum(phase.values()), 1.0))
    if 'eval/pass@1' in row:
      curve.append({
          **{name: round(value, 3) for name, value in sums.items()},
          'step': row['step'], 'pass@1': row['eval/pass@1'],
          'pass@8': row.get('eval/pass@8')})
  updated = [row for row in steps if row['batch/rounds']]
  return {
      'curve': curve, 'signal': signal, 'informative': informative,
      'samples': sums['samples'], 'phases': phases,
      'grad_norm': statistics.mean(
          row['update/grad_norm'] for row in updated),
      'staleness': statistics.mean(
          row['batch/staleness'] for row in updated)}


def smoothed(result: Result, figure: str = 'pass@1') -> list[float]:
  """Returns a figure at each evaluation, a mean of the last SMOOTH ones."""
  values = [point[figure] for point in result['curve']]
  return [statistics.mean(values[max(0, i - SMOOTH + 1):i + 1])
          for i in range(len(values))]


def to_target(result: Result, name: str) -> float | None:
  """Returns the sum of `name` when the target is reached; None if it is not.

  It is interpolated between the two evaluations around the target.
  """
  figure = 'pass@8' if result['arm'] in PKPO else 'pass@1'
  values, curve = smoothed(result, figure), result['curve']
  target = curve[0][figure] + RISES[figure]
  for i, value in enumerate(values):
    if value >= target:
      part = (target - values[i - 1]) / (value - values[i - 1])
      return curve[i - 1][name] + part * (curve[i][name] - curve[i - 1][name])
  return None


def by_arm(results: Iterable[Result]) -> dict[str, list[Result]]:
  """Groups the results by arm, in the order of LABELS."""
  arms: dict[str, list[Result]] = {arm: [] for arm in LABELS}
  for result in results:
    arms[result['arm']].append(result)
  return {arm: found for arm, found in arms.items() if found}


class Costs:
  """Seconds per token of each phase, medians over the steps of all runs."""

  def __init__(self, results: Sequence[Result]):
    def median(phase):
      return statistics.median(
          seconds / tokens for result in results
          for seconds, tokens in result['phases'][phase]
          if tokens and (phase != 'score' or scores(result)))

    self.sample, self.update, self.score, self.other = (
        median(phase) for phase in ('sample', 'update', 'score', 'other'))

  def of_run(self, result: Result) -> tuple[float, float]:
    """Returns the predicted and the measured seconds of a run's steps."""
    predicted = measured = 0.0
    for phase, steps in result['phases'].items():
      if phase != 'score' or scores(result):
        predicted += getattr(self, phase) * sum(tokens for _, tokens in steps)
      measured += sum(seconds for seconds, _ in steps)
    return predicted, measured

  def to_target(
      self, result: Result, share: float | None, rloo: Result,
  ) -> float | None:
    """Predicts the seconds to the target.

    Args:
      result: the run.
      share: share of generation in RLOO's time; None for the measured costs.
      rloo: run of RLOO with the same seed.
    """
    if None in (to_target(result, 'step'), to_target(rloo, 'step')):
      return None
    sample, other = self.sample, self.other
    if share is not None:  # and the host's work takes no time
      other = 0.0
      sample = (share / (1 - share) * self.update
                * to_target(rloo, 'trained') / to_target(rloo, 'generated'))
    train = self.update + (self.score if scores(result) else 0.0)
    return (sample * to_target(result, 'generated')
            + train * to_target(result, 'trained')
            + other * to_target(result, 'step'))


def scores(result: Result) -> bool:
  """Returns whether the run computes old log-probs."""
  return result['arm'] not in ('rloo', 'pkpo8', 'pkpo4', 'start')


def _seeds(values: Sequence[float | None], digits: int = 0) -> str:
  """Formats the mean over seeds with its error, and seeds without a value."""
  there = [value for value in values if value is not None]
  if not there:
    return 'not reached'
  text = f'{statistics.mean(there):,.{digits}f}'
  if len(there) > 1:
    error = statistics.stdev(there) / len(there) ** 0.5
    text += f' ± {error:,.{digits}f}'
  missed = len(values) - len(there)
  return text + (f' ({missed} of {len(values)} not reached)' if missed else '')


def _ratios(
    arms: Mapping[str, list[Result]], arm: str, base: str,
    figure: Callable[[Result], float | None]) -> list[float | None]:
  """Returns base / arm of a figure for each seed."""
  found = []
  for ours in arms[arm]:
    other = next(r for r in arms[base] if r['seed'] == ours['seed'])
    pair = figure(other), figure(ours)
    found.append(None if None in pair else pair[0] / pair[1])
  return found


def targets(arms: Mapping[str, list[Result]], costs: Costs) -> str:
  """Returns the table of what it takes to reach the target."""
  names = 'samples', 'updates', 'gflops', 'seconds'
  rows = []
  for arm in OTHERS:
    cells = [LABELS[arm]]
    for name in names:
      cells.append(_seeds([to_target(r, name) for r in arms[arm]]))
    for name in ('samples', 'gflops', 'seconds'):
      cells.append(_seeds(_ratios(
          arms, arm, 'rloo', lambda r, name=name: to_target(r, name)), 2))
    for share in SHARES:
      rloo = {r['seed']: r for r in arms['rloo']}
      cells.append(_seeds(_ratios(
          arms, arm, 'rloo', lambda r, share=share: costs.to_target(
              r, share, rloo[r['seed']])), 2))
    rows.append(cells)
  return markdown(
      ['', 'samples', 'updates', 'GFLOP', 'seconds', 'samples, times fewer',
       'FLOPs, times fewer', 'seconds, times fewer',
       *(f'modelled, generation {share:.0%}' for share in SHARES)], rows)


def at_start(arms: Mapping[str, list[Result]]) -> str:
  """Returns the table of samples per informative prompt before training."""
  rows = []
  for arm in AT_START:
    rows.append([LABELS[arm]])
    for name in ('informative', 'signal'):
      figure = lambda r, name=name: r['samples'] / r[name]
      rows[-1] += [_seeds([figure(r) for r in arms[arm]], 1),
                   _seeds(_ratios(arms, arm, 'start', figure), 2)]
  return markdown(
      ['samples', 'per informative prompt', 'times fewer',
       'per unit of signal', 'times fewer'], rows)


def signals(arms: Mapping[str, list[Result]]) -> str:
  """Returns the table of samples per unit of signal, over whole runs."""
  figure = lambda r: r['samples'] / r['signal']
  rows = []
  for k in (8, 4):
    for arm in (f'pkpo{k}', f'pkpo{k}_pass_rate', f'pkpo{k}_signal'):
      rows.append([
          LABELS[arm], _seeds([figure(r) for r in arms[arm]], 2),
          _seeds(_ratios(arms, arm, f'pkpo{k}', figure), 2),
          _seeds(_ratios(arms, arm, f'pkpo{k}_pass_rate', figure), 2),
          *(_seeds([to_target(r, name) for r in arms[arm]])
            for name in ('samples', 'updates', 'gflops', 'seconds'))])
  return markdown(
      ['', 'samples per unit of signal', 'times fewer than no screen',
       "times fewer than the paper's rule", 'samples to the target', 'updates',
       'GFLOP', 'seconds'], rows)


def ends(arms: Mapping[str, list[Result]], costs: Costs) -> str:
  """Returns the table of the runs' ends, and the check of the cost model."""
  def last(result, name):
    return statistics.mean(
        point[name] for point in result['curve'][-SMOOTH:])

  rows = []
  for arm in OTHERS + PKPO:
    found = arms[arm]
    predicted, measured = map(sum, zip(*map(costs.of_run, found)))
    rows.append([
        LABELS[arm], f'{statistics.mean(r["samples"] for r in found):,.0f}',
        *(mean_and_error([last(r, name) for r in found])
          for name in ('pass@1', 'pass@8')),
        *(_seeds([r[name] for r in found], 2)
          for name in ('grad_norm', 'staleness')),
        f'{predicted / measured:.2f}'])
  return markdown(
      ['', 'samples', 'pass@1', 'pass@8', 'gradient norm',
       'staleness, updates', 'modelled / measured seconds'], rows)


def report(results: Sequence[Result], command: str) -> str:
  """Returns the report as Markdown."""
  arms, costs = by_arm(results), Costs(results)
  different = lambda key: sorted({result[key] for result in results})
  rloo = arms['rloo'][0]
  shares = {name: sum(seconds for seconds, _ in steps)
            for name, steps in rloo['phases'].items()}
  generation = shares['sample'] / sum(shares.values())
  return f'''# SPEED: samples, compute and time to an accuracy

`{command}`, {' to '.join(different('date'))}, \
{' and '.join(different('machine'))}.

configs/speed/countdown.py: a model of 0.28 million parameters on Countdown. A \
third of the prompts are hardly ever solved by the model before training, and \
some nearly always. Train batches have 16 prompts with 16 samples; with SPEED, \
a step screens 64 prompts. {len(different('seed'))} seeds, mean ± standard \
error. pass@1 is measured on 224 held-out problems with 8 samples each, and \
averaged over {SMOOTH} evaluations.

## Before training

The policy does not change. A prompt is informative if its 16 samples have \
signal: RLOO advantages that are not all 0. Signal is the sum of |advantage|.

{at_start(arms)}

## To the target

The target is a pass@1 of {RISES['pass@1']} above that before training. \
Seconds leave out evaluations, checkpoints and compilation; runs share the \
machine's cores and its noise, so FLOPs are the better measure. "Times fewer" \
compares with RLOO at the same seed.

![pass@1 by samples and by FLOPs]({RESULT.with_suffix('.png').name})

{targets(arms, costs)}

The last columns model the time where generation dominates, as in the paper: \
seconds are proportional to the generated and the trained tokens, with the \
measured cost of a trained token ({costs.update * 1e6:.0f} µs, and \
{costs.score * 1e6:.0f} µs to score it where its group waited) and a cost of a \
generated token such that generation takes this share of RLOO's time. On this \
machine a generated token costs {costs.sample * 1e6:.0f} µs, and generation \
takes {generation:.0%} of RLOO's time.

## Under PKPO

Samples per unit of signal are those of whole runs. The target is a pass@8 of \
{RISES['pass@8']} above that before training, of 8 samples, which is noisy.

{signals(arms)}

## At the end

The last column checks the cost model: the modelled seconds of all steps over \
the measured ones.

{ends(arms, costs)}
'''


def draw(results: Sequence[Result], path: pathlib.Path) -> None:
  """Draws the mean pass@1 of RLOO and DAPO, with and without SPEED."""
  import matplotlib
  from matplotlib.figure import Figure
  shown = {'rloo': ('C0', '--'), 'rloo_drop': ('C0', ':'),
           'speed_rloo_4': ('C0', '-'), 'dapo': ('C1', '--'),
           'speed_dapo_4': ('C1', '-')}
  arms = by_arm(results)
  with matplotlib.rc_context(STYLE):
    figure = Figure(figsize=(11, 4), dpi=130, layout='constrained')
    for axes, (name, text) in zip(figure.subplots(1, 2), (
        ('samples', 'generated samples'), ('gflops', 'model GFLOP'))):
      for arm, (color, line) in shown.items():
        points = zip(*(
            list(zip([p[name] for p in r['curve']], smoothed(r)))
            for r in arms[arm]))
        x, y = zip(*(map(statistics.mean, zip(*point)) for point in points))
        axes.plot(x, y, color=color, linestyle=line, label=LABELS[arm])
      axes.set(xlabel=text, ylabel='held-out pass@1')
    figure.axes[0].legend()
    figure.axes[0].set_title('Samples')
    figure.axes[1].set_title('Compute')
    figure.savefig(path)
