"""SPEED against RLOO, with and without dropped prompts, over more seeds.

  python -m benchmarks.claims.speed_rloo --write

Trains configs/speed/countdown.py with RLOO, with RLOO that drops prompts
without signal, and with SPEED-RLOO by the rule "signal" and by the paper's.
`benchmarks.claims.speed` has DAPO, PKPO and other splits. The rates of RLOO and
SPEED-RLOO were chosen by its runs.
"""

import pathlib
from typing import Sequence

from benchmarks.claims import runs, speed, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.speed import CONFIG, RISES, SPENT
from benchmarks.claims.tables import end, mean_of

CURVE = 0.05, 0.08, 0.1, 0.12, 0.15, 0.17  # rises of pass@1, of a table
LABELS = {arm: speed.LABELS[arm] for arm in (
    'rloo', 'rloo_drop', 'speed_rloo_4', 'speed_rloo_4_rate')}
BASES = 'rloo_drop', 'rloo'
COSTS = 'samples', 'GFLOP', 'seconds'
SEEDS = range(20, 32)
FEW = 8  # seeds of the paper's rule
ARMS = {
    'rloo': speed.ARMS['rloo'],
    'rloo_drop': Arm(speed.ARMS['rloo_drop'].fields, rate='rloo_drop'),
    'speed_rloo_4': speed.ARMS['speed_rloo_4'],
    'speed_rloo_4_rate': speed.ARMS['speed_rloo_4_rate']._replace(
        seeds=SEEDS[:FEW]),
}


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  return f'''\
{CONFIG}: a model of 0.28 million parameters on Countdown, on a mix of prompts \
made for SPEED: a third are hardly ever solved by the model before training, \
and some nearly always. Train batches have 16 prompts with 16 samples; with \
SPEED, a step screens 64 prompts with 4, by the rule "signal", which is ours, \
unless it says "paper's rule". pass@1 is measured on 224 held-out problems \
with 8 samples each, and averaged over {tables.LAST} evaluations. A run that \
does not reach the target counts with all that it spent: ratios to it are "at \
least", and there is none where a run of SPEED misses it. The rise of \
{RISES['pass@1']} was set for the sentences before these runs; that they have \
the highest rise that all runs of SPEED reach, and pass@1 after equal costs, \
was decided after them. All rises of the table were set before. GFLOP are of \
samples, updates and old log-probs, which plain RLOO does not compute. Seconds \
leave out evaluations, checkpoints and compilation; runs share the machine's \
cores and its noise, so FLOPs are the better measure.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  highest = max((rise for rise in CURVE if not missed(
      arms, 'speed_rloo_4', rise)), default=CURVE[0])
  say = lambda base: '; '.join(f'{name} ' + speed.ratio_to_target(
      arms, 'speed_rloo_4', base, SPENT[name], highest) for name in COSTS)
  lower = '; '.join(f'+{rise:.2f}: ' + speed.ratio_to_target(
      arms, 'speed_rloo_4', 'rloo_drop', 'gflops', rise)
                    for rise in CURVE if rise < highest)
  equal = '; '.join(
      f'{name}: ' + tables.compared(
          arms, LABELS, 'speed_rloo_4', 'rloo_drop',
          tables.at_equal(_three(arms), SPENT[name])) for name in COSTS)
  target = RISES['pass@1']
  share = lambda arm: (
      f'{missed(arms, arm, target)} of {len(arms.get(arm, ()))}')
  return (
      f'a held-out pass@1 of {target} above the start is missed by '
      f'{share("rloo")} runs of RLOO, {share("rloo_drop")} of RLOO that drops '
      f'prompts without signal and {share("speed_rloo_4")} of SPEED-RLOO. To '
      f'a rise of {highest}, the highest that all runs of SPEED-RLOO reach, '
      f'RLOO needs so many times as much as SPEED-RLOO: {say("rloo")}. '
      f'RLOO that drops prompts: {say("rloo_drop")}; GFLOP at lower rises: '
      f'{lower}. pass@1 after equal {equal}. Generation takes '
      f"{speed.generation(arms):.0%} of RLOO's seconds.")


def missed(arms: tables.Arms, arm: str, rise: float) -> int:
  """Returns the number of an arm's runs that do not reach a rise of pass@1."""
  return sum(speed.to_target('samples', rise=rise)(result) is None
             for result in arms.get(arm, ()))


def curve_of(arms: tables.Arms) -> str:
  """Returns the table of ratios to SPEED-RLOO by the rise of the target."""
  return tables.markdown(
      ['rise', *(f'{name}, of {LABELS[base]}' for base in BASES
                 for name in COSTS),
       *(f'missed by {LABELS[arm]}' for arm in ('speed_rloo_4', *BASES))],
      [[f'{rise:.2f}', *(
          speed.ratio_to_target(arms, 'speed_rloo_4', base, SPENT[name], rise)
          for base in BASES for name in COSTS),
        *(str(missed(arms, arm, rise)) for arm in ('speed_rloo_4', *BASES))]
       for rise in CURVE])


def _three(arms: tables.Arms) -> tables.Arms:
  """Returns SPEED-RLOO and what it is compared with."""
  return {arm: arms[arm] for arm in arms if arm in ('speed_rloo_4', *BASES)}


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables."""
  arms = tables.by_arm(results, LABELS)
  equal = {f'pass@1, equal {name}': tables.at_equal(_three(arms), SPENT[name])
           for name in COSTS}
  return f'''## To the target

The target is a pass@1 of {RISES['pass@1']} above that before training. "Times \
fewer" is the geometric mean over seeds of the base's figure over the arm's, \
with the interval of its logarithm; the base is named in the column.

{tables.table(arms, LABELS, speed.reached())}

{speed.ratios(arms, [*LABELS], speed.against(BASES))}

SPEED-RLOO, 4 + 12, by the rise of the target. "Missed" counts the runs that \
do not reach the target.

{curve_of(arms)}

## At the end

{tables.table(arms, LABELS, {
    'samples': (mean_of('sampled'), 0), 'pass@1': end(),
    'pass@8': end('pass@8'), **equal,
    'gradient norm': (mean_of('update/grad_norm'), 2),
    'staleness, updates': (mean_of('batch/staleness'), 2)})}

{tables.differences(arms, LABELS, [
    *(('speed_rloo_4', base) for base in BASES),
    ('speed_rloo_4', 'speed_rloo_4_rate')],
                    {'pass@1': end(), 'pass@8': end('pass@8'), **equal})}'''


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 by samples, compute and seconds."""
  speed.draw_arms(results, path, speed.RLOO)


CLAIM = runs.Claim(
    'speed_rloo', __doc__, 'SPEED against RLOO: samples, compute and time',
    CONFIG, ('arm',), ARMS, SEEDS, speed.measure, end(), about, summary,
    sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
