"""PKPO on programs of one line, whose reward is the share of tests passed.

  python -m benchmarks.claims.pkpo_programs --write

Trains benchmarks/claims/expressions.py, whose programs run in the sandbox, with
k = 1, 4, 8 and 16 = n, and with k = 1 and entropy bonuses, each of which has a
learning rate of its own. One more arm has k = 1 with the rate of k = 8, and one
samples from the warm start without training. All have the same steps and
numbers of samples.
"""

import pathlib
from typing import Any, Sequence

from benchmarks.claims import expressions, pkpo_arc, runs, tables
from benchmarks.claims.pkpo_arc import KS
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import mean_of

CONFIG = 'benchmarks/claims/expressions.py'
SAMPLES = 32  # responses to each held-out problem
BONUSES = '.1', '.3'
LABELS = {
    'frozen': 'not trained', '1': 'k=1', '4': 'k=4', '8': 'k=8',
    '16': 'k=16=n', 'equal': "k=1 with k=8's learning rate",
    **{f'bonus {bonus}': f'k=1, entropy bonus {bonus}' for bonus in BONUSES}}
FIGURES = {
    'solved so far': mean_of('solved'),
    'of the hard forms': mean_of('solved_hard'),
    **{f'pass@{k}': mean_of(f'pass@{k}') for k in KS},
    **{f'best of {k}': mean_of(f'best@{k}') for k in KS}}
# A learning rate of 0 keeps the warm start's parameters.
ARMS = {
    'frozen': Arm({runs.RATE: 0.0, 'pkpo.k': 16}),
    **{k: Arm({'pkpo.k': int(k)}, rate=k) for k in ('1', '4', '8', '16')},
    'equal': Arm({'pkpo.k': 1}, rate='8'),
    **{f'bonus {bonus}': Arm(
        {'pkpo.k': 1, 'loss.entropy_bonus': float(bonus)},
        rate=f'bonus {bonus}') for bonus in BONUSES}}


def measure(
    config: str, name: str, folder: pathlib.Path, fields: dict[str, Any],
) -> dict[str, Any]:
  """Trains and evaluates an arm; see `runs.Claim`."""
  # All seeds have the same problems.
  known = str(folder / 'printed.jsonl')
  return pkpo_arc.measured(
      config, name, folder, {**fields, 'task.known': known},
      hard=expressions.HARD, samples=SAMPLES)


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  return f'''\
{CONFIG}: a model of 0.09 million parameters writes an expression in x from \
five values of a function; it runs in the sandbox, and the reward is the share \
of {len(expressions.TESTED)} tests passed. There are {len(expressions.FORMS)} \
forms of functions, half of which are hard: few demonstrations of the warm \
start are right. All arms have {results[0]["steps"]} steps of 16 prompts with \
16 samples. "Solved so far" is the share of training problems with a right \
sample in some step. pass@k (all tests) and best of k (mean of the largest \
reward) are unbiased, from {SAMPLES} samples of each held-out problem. "Not \
trained" samples from the warm start as often as the others do in training. \
The best bonus is the one with the largest mean over these seeds, which \
favours it.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms, figure = tables.by_arm(results, LABELS), FIGURES['best of 8']
  return 'held-out best of 8: ' + '; '.join(
      tables.compared(arms, LABELS, '8', other, figure)
      for other in ('equal', '1', tables.best(arms, 'bonus', figure), '16',
                    'frozen')
      if {'8', other} <= arms.keys()) + '.'


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables."""
  arms = tables.by_arm(results, LABELS)
  pairs = [(arm, other) for arm in ('4', '8', '16') for other in arms
           if other not in ('4', '8', '16') or (arm, other) == ('8', '16')]
  return '\n\n'.join([
      tables.table(arms, LABELS, {
          **FIGURES, 'reward': mean_of('reward'),
          'entropy': mean_of('entropy'), 'minutes': (mean_of('minutes'), 1)}),
      tables.differences(arms, LABELS, pairs, FIGURES)])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws the training problems solved by step."""
  looks = {'frozen': ('black', ':'), '1': ('C1', '-'), 'equal': ('C1', '--'),
           '4': ('C0', ':'), '8': ('C0', '-'), '16': ('C0', '--'),
           **{f'bonus {bonus}': ('C2', line)
              for bonus, line in zip(BONUSES, ('--', '-'))}}
  tables.draw(path, [tables.Panel(
      tables.by_arm(results, LABELS), pkpo_arc.EVERY, 'curve',
      ('step', 'training problems solved so far'), '', looks)], LABELS)


CLAIM = runs.Claim(
    'pkpo_programs', __doc__, 'PKPO on programs with a continuous reward',
    CONFIG, ('arm',), ARMS, range(10, 18), measure, mean_of('best@8'), about,
    summary, sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
