"""SPEED's claims on a small task: samples, compute and time to an accuracy.

  python -m benchmarks.claims.speed --write

Trains configs/speed/countdown.py with RLOO, DAPO and PKPO, with and without
SPEED, and samples from the model before training to count the samples of an
informative prompt. All have about the same number of generated samples.
`benchmarks.claims.speed_rloo` has more seeds of RLOO.
"""

import pathlib
import statistics
from typing import Any, Mapping, Sequence

from benchmarks.claims import runs, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import end, mean_of

CONFIG = 'configs/speed/countdown.py'
# The targets, above the figure before training; pass@8 is that of PKPO.
RISES = {'pass@1': 0.15, 'pass@8': 0.02}
SHARES = 2 / 3, 0.9  # of generation in RLOO's time, where it dominates
SPENT = {'samples': 'samples', 'updates': 'updates', 'GFLOP': 'gflops',
         'seconds': 'elapsed'}

LABELS = {
    'rloo': 'RLOO', 'speed_rloo_4': 'SPEED-RLOO, 4 + 12',
    'speed_rloo_4_rate': "SPEED-RLOO, 4 + 12, paper's rule",
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

# The steps make the numbers of generated samples about equal.
_ALL = {'curriculum': 'uniform', 'curriculum_prompts': None, 'steps': 150,
        'eval.every': 10}
_DROP = {**_ALL, 'curriculum': 'dynamic'}
_DAPO = {'advantage': 'grpo', 'loss.clip_high': 0.28}
_FROZEN = {runs.RATE: 0.0, 'eval.every': 0}
_RULE = {'speed.rule': 'pass_rate'}  # the paper's


def _pkpo(k: int) -> dict[str, Arm]:
  """Returns the arms of PKPO with a k."""
  fields = {'advantage': 'pkpo', 'pkpo.k': k}
  return {
      f'pkpo{k}': Arm({**_ALL, **fields, 'steps': 120}, rate='rloo'),
      f'pkpo{k}_pass_rate': Arm(
          {**fields, **_RULE, 'steps': 60}, rate='speed_rloo_4'),
      f'pkpo{k}_signal': Arm({**fields, 'steps': 50}, rate='speed_rloo_4')}


ARMS = {
    'rloo': Arm(_ALL, rate='rloo'),
    'speed_rloo_4': Arm(rate='speed_rloo_4'),
    'speed_rloo_4_rate': Arm(_RULE, rate='speed_rloo_4'),
    'rloo_drop': Arm(_DROP, rate='rloo'),
    'dapo': Arm({**_DROP, **_DAPO}, rate='rloo'),
    'speed_dapo_4': Arm(_DAPO, rate='speed_rloo_4'),
    'speed_rloo_6': Arm(
        {'speed.n_init': 6, 'steps': 65}, rate='speed_rloo_4'),
    'speed_rloo_8': Arm(
        {'speed.n_init': 8, 'steps': 60}, rate='speed_rloo_4'),
    **_pkpo(8), **_pkpo(4),
    'start': Arm({**_ALL, **_FROZEN, 'steps': 100}),
    **{f'start_{n}': Arm({**_FROZEN, 'speed.n_init': n, 'steps': 50})
       for n in (4, 6, 8)},
}


def measure(*arm: Any) -> dict[str, Any]:
  """Trains an arm; see `runs.Claim`.

  Beside the curves, a row has 'signal', the sum of |advantage| of the complete
  groups; 'informative', the complete groups with signal; and 'phases', for each
  phase its seconds, its tokens (steps for 'other'), and the median seconds of
  one, without the first steps.
  """
  rows = runs.train_arm(*arm)
  steps = rows[1:]
  groups = lambda row: row.get(
      'screening/continued', row['response/count'] / 16)
  generated = lambda row: row['response/count'] * (row['response/length'] or 0)
  trained = lambda row: row.get('update/tokens') or 0
  timed = ('sample', generated), ('update', trained), ('score', trained)
  phases = {
      name: [(row[f'seconds/{name}'], count(row))
             for row in steps[tables.WARM:]] for name, count in timed}
  phases['other'] = [
      (row['seconds/step'] - sum(row[f'seconds/{name}'] for name, _ in timed),
       1.0) for row in steps[tables.WARM:]]
  updated = [row for row in steps if row['batch/rounds']]
  return {
      **tables.curves_of(rows),
      'signal': sum(row['reward/signal'] for row in steps),
      'informative': sum(
          groups(row) * (1 - (row['reward/no_signal'] or 0)) for row in steps),
      'sampled': sum(row['response/count'] for row in steps),
      'phases': {name: _costs(found) for name, found in phases.items()},
      **tables.means_of(updated, ('update/grad_norm', 'batch/staleness'))}


def _costs(found: Sequence[tuple[float, float]]) -> list[float]:
  """Returns the seconds and the tokens of a phase, and the median cost."""
  seconds, tokens = map(sum, zip(*found))
  return [seconds, tokens, statistics.median(
      [seconds / tokens for seconds, tokens in found if tokens] or [0.0])]


def to_target(
    spent: str, least: bool = False, rise: float | None = None,
) -> tables.Figure:
  """Returns the function for what is spent when the target is reached.

  It is interpolated between the two evaluations around the target. If the run
  does not reach it, it is None, or with `least` all that the run spent. The
  target is `rise` above the figure before training, by default that of RISES.
  """
  def figure(result):
    name = 'pass@8' if result['arm'] in PKPO else 'pass@1'
    values = tables.smoothed(result, name)
    target, total = values[0] + (rise or RISES[name]), result[spent]
    for i, value in enumerate(values):
      if value >= target:
        part = (target - values[i - 1]) / (value - values[i - 1])
        return total[i - 1] + part * (total[i] - total[i - 1])
    return total[-1] if least else None

  return figure


def times_fewer(
    arms: tables.Arms, arm: str, base: str, figure: tables.Figure,
    least: tables.Figure | None = None) -> str:
  """Says the mean of base / arm of a figure, paired by seed.

  Its interval is Student's, of the logarithm's mean: ratios are not symmetric.

  Args:
    arms: of `tables.by_arm`.
    arm, base: names.
    figure: None where a run does not reach the target.
    least: figure of the base that is no more than what it would need; the
      result is then "at least".
  """
  found = tables.pairs(arms, arm, base, figure)
  missed, own = (sum(pair[i] is None for pair in found) for i in (1, 0))
  if own or missed and not least:
    return f'missed by {own or missed} of {len(found)}' + (
        '' if own else ' of the base')
  if not found:
    return 'not run'
  text = tables.ratio([theirs / ours for ours, theirs in tables.pairs(
      arms, arm, base, figure, least)])
  return f'at least {text}' if missed else text


def scores(result: tables.Result) -> bool:
  """Returns whether the run computes old log-probs."""
  return result['arm'] not in ('rloo', 'pkpo8', 'pkpo4', 'start')


def modelled(
    results: Sequence[tables.Result], share: float, rloo: tables.Arms,
    least: bool = False) -> tables.Figure:
  """Returns the function for the seconds to the target by a model of time.

  Seconds are proportional to generated and trained tokens, with the measured
  cost of a trained token, and a cost of a generated one such that generation
  takes this share of RLOO's time at the same seed. The host takes none. A run
  that does not reach the target has None, or with `least` what it took in all.
  """
  update, score = (
      statistics.median(r['phases'][name][2] for r in results
                        if name == 'update' or scores(r))
      for name in ('update', 'score'))
  generated, trained = (
      to_target(name, least) for name in ('generated', 'trained'))

  def figure(result):
    base, = (r for r in rloo['rloo'] if r['seed'] == result['seed'])
    if generated(result) is None:
      return None
    sample = (share / (1 - share) * update * to_target('trained', True)(base)
              / to_target('generated', True)(base))
    return sample * generated(result) + trained(result) * (
        update + score * scores(result))

  return figure


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  return f'''\
{CONFIG}: a model of 0.28 million parameters on Countdown, on a mix of prompts \
made for SPEED: a third are hardly ever solved by the model before training, \
and some nearly always. Train batches have 16 prompts with 16 samples; with \
SPEED, a step screens 64 prompts, by the rule "signal", which is ours, unless \
it says "paper's rule". pass@1 is measured on 224 held-out problems with 8 \
samples each, and averaged over {tables.LAST} evaluations. A run that does not \
reach the target counts with all that it spent: ratios to it are "at least", a \
rule that was written together with the results. Seconds leave out \
evaluations, checkpoints and compilation; runs share the machine's cores and \
its noise, so FLOPs are the better measure. GFLOP leave out the pass for old \
log-probs, which all but plain RLOO and PKPO without a screen have: \
[SPEED-RLOO with more seeds](speed_rloo.md) has it.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  signal = times_fewer(
      arms, 'pkpo8_signal', 'pkpo8_pass_rate', per('signal'))
  pkpo = tables.compared(
      arms, LABELS, 'pkpo8_signal', 'pkpo8_pass_rate', end('pass@8'))
  return (
      "under PKPO with k=8, the paper's rule needs so many times the samples "
      f'of the rule "signal" per unit of signal: {signal}. pass@8 at the end: '
      f'{pkpo}.')


def per(name: str) -> tables.Figure:
  """Returns the function for the samples per unit of a sum of the run."""
  return lambda result: result['sampled'] / result[name]


def ratio_to_target(
    arms: tables.Arms, arm: str, base: str, spent: str,
    rise: float | None = None) -> str:
  """Says how many times as much the base needs to the target."""
  return times_fewer(arms, arm, base, *(
      to_target(spent, least, rise) for least in (False, True)))


def generation(arms: tables.Arms) -> float:
  """Returns the share of generation in RLOO's seconds."""
  return statistics.fmean(r['phases']['sample'][0] / sum(
      seconds for seconds, *_ in r['phases'].values()) for r in arms['rloo'])


def ratios(
    arms: tables.Arms, names: Sequence[str],
    columns: dict[str, tuple[Any, ...]]) -> str:
  """Returns a table of ratios.

  Args:
    arms: of `tables.by_arm`.
    names: of the arms that have a row, if they have results.
    columns: title to what `times_fewer` takes: base, figure, and maybe `least`.
  """
  return tables.markdown(['times fewer', *columns], [
      [LABELS[arm], *('' if arm == base else times_fewer(
          arms, arm, base, *figures) for base, *figures in columns.values())]
      for arm in names if arm in arms])


def reached() -> dict[str, tuple[tables.Figure, int]]:
  """Returns the columns of what is spent to the target."""
  return {f'{name} to the target': (to_target(spent), 0)
          for name, spent in SPENT.items()}


def against(bases: Sequence[str]) -> dict[str, tuple[Any, ...]]:
  """Returns the columns of `ratios` of what is spent to the target."""
  return {f'{name}, of {LABELS[base]}': (
      base, to_target(spent), to_target(spent, least=True))
          for base in bases for name, spent in SPENT.items()
          if name != 'updates'}


def _model(results: Sequence[tables.Result], arms: tables.Arms) -> str:
  """Returns the share of generation, and ratios where it is larger."""
  return f'''
Generation takes {generation(arms):.0%} of RLOO's seconds. No setting \
of this task was found where it takes half and a run takes minutes. Where it \
takes more, seconds are modelled from tokens, see `modelled`:

''' + ratios(arms, OTHERS, {
    f'generation {share:.0%}': ('rloo', *(
        modelled(results, share, arms, least) for least in (False, True)))
    for share in SHARES}) + '\n'


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables."""
  arms = tables.by_arm(results, LABELS)
  only = lambda names: {arm: arms[arm] for arm in names if arm in arms}
  return f'''## Before training

The policy does not change. A prompt is informative if its 16 samples have \
signal: RLOO advantages that are not all 0. Signal is the sum of |advantage|.

{tables.table(only(AT_START), LABELS, {
    'samples per informative prompt': (per('informative'), 1),
    'per unit of signal': (per('signal'), 1)})}

{ratios(arms, AT_START, {
    'samples per informative prompt': ('start', per('informative')),
    'per unit of signal': ('start', per('signal'))})}

## To the target

The target is a pass@1 of {RISES['pass@1']} above that before training. "Times \
fewer" is the geometric mean over seeds of the base's figure over the arm's, \
with the interval of its logarithm; the base is named in the column.

{tables.table(only(OTHERS), LABELS, reached())}

{ratios(arms, OTHERS, against(('rloo', 'rloo_drop')))}
{_model(results, arms)}
## Under PKPO

Samples per unit of signal are those of whole runs. The target is a pass@8 of \
{RISES['pass@8']} above that before training, of 8 samples, which is noisy.

{tables.table(only(PKPO), LABELS, {
    'samples per unit of signal': (per('signal'), 2), **reached()})}

{ratios(arms, PKPO, {
    f'samples per unit of signal, of {LABELS[base]}': (base, per('signal'))
    for base in ('pkpo8', 'pkpo8_pass_rate')})}

## At the end

{tables.table(only(OTHERS + PKPO), LABELS, {
    'samples': (mean_of('sampled'), 0), 'pass@1': end(),
    'pass@8': end('pass@8'),
    'pass@1, equal seconds': tables.at_equal(only(OTHERS), 'elapsed'),
    'gradient norm': (mean_of('update/grad_norm'), 2),
    'staleness, updates': (mean_of('batch/staleness'), 2)})}'''


RLOO = {  # looks
    'rloo': ('C0', '--'), 'rloo_drop': ('C0', ':'),
    'speed_rloo_4': ('C0', '-'), 'speed_rloo_4_rate': ('C2', '-')}


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 of RLOO and DAPO, with and without SPEED."""
  draw_arms(results, path, {
      **RLOO, 'dapo': ('C1', '--'), 'speed_dapo_4': ('C1', '-')})


def draw_arms(
    results: Sequence[tables.Result], path: pathlib.Path,
    looks: Mapping[str, tuple[str, str]]) -> None:
  """Draws pass@1 of the arms that have a look."""
  found = [{**r, 'smooth': tables.smoothed(r, 'pass@1')} for r in results]
  arms = tables.by_arm(found, OTHERS)
  tables.draw(path, [
      tables.Panel(arms, x, 'smooth', (text, 'held-out pass@1'), '', looks)
      for x, text in (('samples', 'generated samples'),
                      ('gflops', 'model GFLOP'), ('elapsed', 'seconds'))],
              LABELS)


CLAIM = runs.Claim(
    'speed', __doc__, 'SPEED: samples, compute and time to an accuracy',
    CONFIG, ('arm',), ARMS, range(10, 18), measure, end(), about, summary,
    sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
