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

LABELS = {arm: speed.LABELS[arm] for arm in (
    'rloo', 'rloo_drop', 'speed_rloo_4', 'speed_rloo_4_rate')}
BASES = 'rloo_drop', 'rloo'
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
least". GFLOP are of samples, updates and old log-probs, which plain RLOO does \
not compute. Seconds leave out evaluations, checkpoints and compilation; runs \
share the machine's cores and its noise, so FLOPs are the better measure.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  return speed.of_rloo(tables.by_arm(results, LABELS))


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables."""
  arms = tables.by_arm(results, LABELS)
  three = {arm: arms[arm] for arm in arms if arm in ('speed_rloo_4', *BASES)}
  equal = {f'pass@1, equal {name}': tables.at_equal(three, spent)
           for name, spent in SPENT.items() if name != 'updates'}
  return f'''## To the target

The target is a pass@1 of {RISES['pass@1']} above that before training. "Times \
fewer" is the geometric mean over seeds of the base's figure over the arm's, \
with the interval of its logarithm; the base is named in the column.

{tables.table(arms, LABELS, speed.reached())}

{speed.ratios(arms, [*LABELS], speed.against(BASES))}

SPEED-RLOO, 4 + 12, by the rise of the target. "Missed" counts the runs that \
do not reach the target.

{speed.curve_of(arms)}

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
