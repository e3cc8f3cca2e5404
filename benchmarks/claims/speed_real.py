"""SPEED on a real language model: what a pass@1 takes.

  python -m benchmarks.claims.speed_real --write

Trains configs/real/smollm2.py by RLOO, on a mix of which SmolLM2-135M-Instruct
never solves a third: on all prompts, on those with signal, and with SPEED. All
have about the same number of samples, and the learning rate of the config, held
constant.
"""

import pathlib
import statistics
from typing import Any, Sequence

from benchmarks.claims import runs, speed, tables
from benchmarks.claims.runs import Arm

CONFIG = 'configs/real/smollm2.py'
RISES = 0.1, 0.2, 0.3, 0.4  # of pass@1, above that before training
TARGET = 0.2  # of these, in the summary
SPENT = {'samples': 'samples', 'GFLOP': 'gflops', 'seconds': 'elapsed'}
LABELS = {
    'rloo': 'RLOO', 'rloo_drop': 'RLOO, zero-variance prompts dropped',
    'speed': 'SPEED-RLOO, 4 + 4'}
_JOB = {
    'task.kinds': ('sums', 'two_digit', 'products', 'two_steps',
                   'large_products'),
    'task.train': (400, 400, 200, 400, 700),
    'task.heldout': (60, 76, 20, 48, 1), 'advantage': 'rloo',
    'optimizer.schedule': 'constant', 'checkpoint.every': 20}
ARMS = {
    'rloo': Arm({**_JOB, 'steps': 100, 'eval.every': 10}),
    'rloo_drop': Arm({
        **_JOB, 'steps': 100, 'eval.every': 10, 'curriculum': 'dynamic'}),
    # A step screens 32 prompts by 4 samples, and continues some by 4.
    'speed': Arm({**_JOB, 'steps': 70, 'eval.every': 7, 'curriculum': 'speed',
                  'curriculum_prompts': 32, 'speed.n_init': 4}),
}


def measure(*arm: Any) -> dict[str, Any]:
  """Trains an arm; see `runs.Claim`."""
  rows = runs.train_arm(*arm)
  steps = rows[1 + tables.WARM:]
  return {
      **tables.curves_of(rows),
      'generation': round(sum(row['seconds/sample'] for row in steps)
                          / sum(row['seconds/step'] for row in steps), 4),
      **tables.means_of(rows[1:], ('response/length', 'response/entropy'))}


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  rloo = [r['generation'] for r in results if r['arm'] == 'rloo']
  return f'''\
{CONFIG}: SmolLM2-135M-Instruct on arithmetic in words, a third of it products \
of three digits, which it never solves. Batches have 16 prompts with 8 \
samples; with SPEED a step screens 32 prompts by 4. pass@1 is measured on 205 \
held-out problems, of which one is such a product, and averaged over \
{tables.LAST} evaluations. Generation takes {statistics.fmean(rloo):.0%} of \
RLOO's seconds. Runs shared the machine with other work, which their seconds \
measure too. A run that does not reach a target counts with all that it spent: \
its ratios are "at least".'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  parts = []
  for base in ('rloo', 'rloo_drop'):
    said = '; '.join(f'{name} {times(arms, base, spent, TARGET)}'
                     for name, spent in SPENT.items())
    parts.append(f'{LABELS[base]}: {said}')
  return (f'to a held-out pass@1 of {TARGET} above the start, the others need '
          f'so many times as much as SPEED-RLOO. {". ".join(parts)}.')


def times(arms: tables.Arms, base: str, spent: str, rise: float) -> str:
  """Says how many times as much as SPEED a base needs to a target."""
  return speed.times_fewer(arms, 'speed', base, *(
      speed.to_target(spent, least, rise) for least in (False, True)))


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables: at the end, and by the rise of the target."""
  arms = tables.by_arm(results, LABELS)
  missed = lambda arm, rise: str(sum(
      speed.to_target('samples', rise=rise)(r) is None
      for r in arms.get(arm, ())))
  others = [arm for arm in ('rloo', 'rloo_drop') if arm in arms]
  return '\n\n'.join([
      tables.table(arms, LABELS, {
          'pass@1 at the end': tables.end(),
          **{name: (lambda r, spent=spent: r[spent][-1], 0)
             for name, spent in SPENT.items()},
          'share of generation': (tables.mean_of('generation'), 2)}),
      'Times as much as SPEED-RLOO needs, by the rise of the target; "missed" '
      'counts the runs that do not reach it.',
      tables.markdown(
          ['rise', *(f'{name}, {LABELS[arm]}' for arm in others
                     for name in SPENT),
           *(f'missed by {LABELS[arm]}' for arm in arms)],
          [[f'{rise:.1f}', *(times(arms, arm, spent, rise) for arm in others
                             for spent in SPENT.values()),
            *(missed(arm, rise) for arm in arms)] for rise in RISES])])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 by samples, compute and seconds."""
  found = [{**r, 'smooth': tables.smoothed(r, 'pass@1')} for r in results]
  looks = {'rloo': ('C0', '--'), 'rloo_drop': ('C0', ':'), 'speed': ('C0', '-')}
  tables.draw(path, [
      tables.Panel(tables.by_arm(found, LABELS), x, 'smooth',
                   (text, 'held-out pass@1'), '', looks)
      for x, text in (('samples', 'generated samples'),
                      ('gflops', 'model GFLOP'), ('elapsed', 'seconds'))],
              LABELS)


CLAIM = runs.Claim(
    'speed_real', __doc__, 'SPEED on a real language model', CONFIG, ('arm',),
    ARMS, range(13, 18), measure, tables.end(), about, summary, sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
