"""SPEED on a real language model: what a mean reward takes.

  python -m benchmarks.claims.speed_real --write

Trains configs/real/smollm2.py by RLOO, on a mix of which SmolLM2-135M-Instruct
never solves a third: on all prompts, on those with signal, and with SPEED. All
have about the same number of samples, and the learning rate of the config, held
constant. Progress is measured on the responses of each step to problems that it
has not trained on, since evaluations would be too few for targets so close.
"""

import pathlib
import shutil
from typing import Any, Mapping, Sequence

import numpy as np

from benchmarks.claims import runs, speed, tables
from benchmarks.claims.runs import Arm

CONFIG = 'configs/real/smollm2.py'
# Samples whose rewards are averaged, the same of all arms: a mean over steps
# would be later and smoother with SPEED, whose steps have more samples.
WINDOW = 1024
# Of the mean reward. In `real`'s runs lower ones come within the first windows.
TARGETS = 0.25, 0.3, 0.35
TARGET = 0.3  # of these, in the summary
SPENT = {'samples': 'samples', 'GFLOP': 'gflops', 'seconds': 'elapsed'}
LABELS = {
    'rloo': 'RLOO', 'rloo_drop': 'RLOO, zero-variance prompts dropped',
    'speed': "SPEED-RLOO, 4 + 12, paper's rule"}
OTHERS = 'rloo', 'rloo_drop'
NEVER = 'large_products'  # of the problems, a third
_JOB = {
    'task.kinds': ('sums', 'two_digit', 'products', 'two_steps', NEVER),
    'task.train': (400, 400, 200, 400, 700),
    'task.heldout': (60, 76, 20, 48, 1), 'advantage': 'rloo',
    'prompts_per_step': 8, 'samples_per_prompt': 16,
    # Steps that fill a batch are rarer with some arms: they would warm up late.
    'optimizer.schedule': 'constant', 'optimizer.warmup_steps': 0,
    'checkpoint.every': 20}
ARMS = {
    # Rows of advantage 0 count, but are not computed.
    'rloo': Arm({**_JOB, 'steps': 60, 'eval.every': 60,
                 'drop_zero_advantage': False, 'learner.skip_zero': True}),
    'rloo_drop': Arm({
        **_JOB, 'steps': 60, 'eval.every': 60, 'curriculum': 'dynamic'}),
    # A step screens 32 prompts by 4 samples, and continues some by 12.
    'speed': Arm({**_JOB, 'steps': 34, 'eval.every': 34, 'curriculum': 'speed',
                  'curriculum_prompts': 32, 'speed.n_init': 4,
                  'speed.rule': 'pass_rate'}),
}


def curve_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the reward of each step, and what was spent up to it.

  Args:
    rows: rows of metrics.jsonl, the first before training.

  Returns:
    Lists by step: reward, mean over the samples that screen nothing; samples,
    gflops, elapsed.
  """
  spent = tables.curves_of([
      {**row, 'eval/pass@1': 0.0, 'eval/pass@1_error': 0.0} for row in rows])
  return {'reward': [round(row['reward/mean'], 4) for row in rows[1:]], **{
      name: spent[name][1:] for name in SPENT.values()}}


def measure(
    config: str, name: str, folder: pathlib.Path, fields: Mapping[str, Any],
) -> dict[str, Any]:
  """Trains an arm; see `runs.Claim`."""
  rows = runs.train_arm(config, name, folder, fields)
  shutil.rmtree(folder / name / 'checkpoints')  # 1.6 GB each
  steps = rows[1 + tables.WARM:]
  return {
      **curve_of(rows), 'heldout': rows[-1]['eval/pass@1'],
      'updates': sum(row['batch/rounds'] for row in rows[1:]),
      'never': rows[-1][f'solve_rate/{NEVER}'],
      'generation': round(sum(row['seconds/sample'] for row in steps)
                          / sum(row['seconds/step'] for row in steps), 4),
      **tables.means_of(rows[1:], ('response/length', 'response/entropy'))}


def smooth(
    result: tables.Result, spent: str = 'samples',
) -> tuple[np.ndarray, np.ndarray]:
  """Returns means of the rewards of WINDOW samples, and what was spent there.

  The windows end where steps do, from the first that fits. A step counts by its
  samples. What was spent is that up to the middle of the window.
  """
  samples = np.array([0.0, *result['samples']])
  total = np.cumsum([0.0, *np.diff(samples) * result['reward']])
  ends = samples[samples >= WINDOW]
  at = lambda where, values: np.interp(where, samples, values)
  return (at(ends, total) - at(ends - WINDOW, total)) / WINDOW, at(
      ends - WINDOW / 2, [0.0, *result[spent]])


def to_target(
    spent: str, target: float, least: bool = False) -> tables.Figure:
  """Returns the function for what is spent when a mean reward is reached.

  If a run does not reach it, it is None, or with `least` what it had spent at
  the middle of the last window.
  """
  def figure(result):
    means, there = smooth(result, spent)
    reached = there[means >= target]
    if len(reached):
      return float(reached[0])
    return float(there[-1]) if least else None

  return figure


def mean_until_equal(arms: tables.Arms, spent: str) -> tables.Figure:
  """Returns the function for the mean reward up to equal spending.

  It is that of the run up to what the arm with the least has spent in all, at
  the same seed; each step counts by what it spent.
  """
  def figure(result):
    least = min(r[spent][-1] for found in arms.values() for r in found
                if r['seed'] == result['seed'])
    each = np.diff(np.minimum([0.0, *result[spent]], least))
    return float(np.dot(each, result['reward']) / least)

  return figure


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  share = tables.mean_and_error(
      (r['generation'] for r in results if r['arm'] == 'rloo'), 2)
  never = tables.mean_and_error((r['never'] for r in results), 3)
  return f'''\
{CONFIG}: SmolLM2-135M-Instruct on arithmetic in words, a third of it products \
of three digits, of which the share {never} is solved at least once. Batches \
have 8 prompts with 16 samples; with SPEED a step screens 32 prompts by 4. The \
reward is the mean over {WINDOW:,} samples, of problems that the run meets for \
the first time, and is reached at the middle of these; SPEED's is of the \
screening samples. RLOO trains on all rows, of which those with an advantage \
of 0 count, but are not computed. All arms have the learning rate of the \
config, which was chosen for GRPO; RLOO takes more updates than the others. \
The share of generation in RLOO's seconds is {share or 'not measured'}. Runs \
shared the machine with other work, which their seconds measure too. A run \
that does not reach a target counts with all that it spent: its ratios are "at \
least".'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  ratios = '; '.join(f'{LABELS[base]} {times(arms, base, "gflops", TARGET)}'
                     for base in OTHERS)
  means = '. '.join(f'Up to equal {name}: ' + '; '.join(
      tables.compared(arms, LABELS, 'speed', base, mean_until_equal(
          arms, SPENT[name])) for base in OTHERS)
                    for name in ('samples', 'GFLOP'))
  return (f'the mean reward is: {means[0].lower()}{means[1:]}. To a mean '
          f'reward of {TARGET}, the others need so many times the GFLOP of '
          f'SPEED-RLOO: {ratios}.')


def times(arms: tables.Arms, base: str, spent: str, target: float) -> str:
  """Says how many times as much as SPEED a base needs to a target."""
  return speed.times_fewer(arms, 'speed', base, *(
      to_target(spent, target, least) for least in (False, True)))


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables: of whole runs, and by the target."""
  arms = tables.by_arm(results, LABELS)
  missed = lambda arm, target: str(sum(
      to_target('samples', target)(r) is None for r in arms.get(arm, ())))
  others = [arm for arm in OTHERS if arm in arms]
  figures = {f'mean reward, equal {name}': mean_until_equal(arms, spent)
             for name, spent in SPENT.items()}
  return '\n\n'.join([
      tables.table(arms, LABELS, {
          **figures, 'held-out pass@1 at the end': tables.mean_of('heldout'),
          **{name: (lambda r, spent=spent: r[spent][-1], 0)
             for name, spent in SPENT.items()},
          'updates': (tables.mean_of('updates'), 0),
          'share of generation': (tables.mean_of('generation'), 2)}),
      tables.differences(
          arms, LABELS, [('speed', base) for base in others], figures),
      'Times as much as SPEED-RLOO needs, by the target; "missed" counts the '
      'runs that do not reach it.',
      tables.markdown(
          ['reward', *(f'{name}, {LABELS[arm]}' for arm in others
                       for name in SPENT),
           *(f'missed by {LABELS[arm]}' for arm in arms)],
          [[f'{target:.2f}', *(
              times(arms, arm, spent, target) for arm in others
              for spent in SPENT.values()),
            *(missed(arm, target) for arm in arms)] for target in TARGETS])])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws the mean reward by samples, compute and seconds."""
  found = [{**r, 'smooth': smooth(r)[0].tolist(), **{
      name: smooth(r, name)[1].tolist() for name in SPENT.values()}}
           for r in results]
  looks = {'rloo': ('C0', '--'), 'rloo_drop': ('C0', ':'), 'speed': ('C0', '-')}
  tables.draw(path, [
      tables.Panel(tables.by_arm(found, LABELS), x, 'smooth',
                   (text, 'mean reward'), '', looks)
      for x, text in (('samples', 'generated samples'),
                      ('gflops', 'model GFLOP'), ('elapsed', 'seconds'))],
              LABELS)


CLAIM = runs.Claim(
    'speed_real', __doc__, 'SPEED on a real language model', CONFIG, ('arm',),
    ARMS, range(13, 17), measure, tables.mean_of('heldout'), about, summary,
    sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
