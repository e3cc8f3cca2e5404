"""PKPO where half of the problems are hard: k=8 against k=1.

  python -m benchmarks.claims.pkpo_mixed --write

Trains configs/pkpo/countdown_hard.py:mixed with k=1 (leave-one-out), k=8 and
k=16=n, each of which has a learning rate of its own; one more arm has k=1 with
the rate of k=8, and one samples from the warm start without training. All have
the same steps and numbers of samples.
"""

import pathlib
from typing import Sequence

from benchmarks.claims import pkpo, runs, tables
from benchmarks.claims.pkpo import KS, pass_at, solved
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import mean_of

CONFIG = 'configs/pkpo/countdown_hard.py:mixed'
LABELS = {
    'frozen': 'not trained', '1': 'k=1',
    'equal': "k=1 with k=8's learning rate", '8': 'k=8', '16': 'k=16=n'}
# A learning rate of 0 keeps the warm start's parameters.
ARMS = {
    'mixed,frozen': Arm({runs.RATE: 0.0, 'pkpo.k': 16}),
    **{f'mixed,{k}': Arm({'pkpo.k': k}, rate=f'mixed,{k}') for k in (1, 8, 16)},
    'mixed,equal': Arm({'pkpo.k': 1}, rate='mixed,8'),
}


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  return f'''\
{CONFIG}: a model of 0.28 million parameters on Countdown, half of whose \
problems need a product, which the warm start hardly ever solves; 16 prompts \
with 16 samples, {results[0]["steps"]} steps, a constant learning rate, \
sloo_minus_one, advantages divided by the batch's standard deviation, rows of \
advantage 0 left out of the mean. Learning rates were chosen for the share of \
hard problems solved so far. "Solved so far" is the share of the hard problems \
in training with a right sample in some step. pass@k is estimated from \
{pkpo.SAMPLES} samples of each held-out problem, of 200 hard and 200 ordinary \
ones. "Not trained" samples from the warm start as often as the others do in \
training.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  said = lambda figure, *others: '; '.join(
      tables.compared(arms, LABELS, '8', other, figure) for other in others)
  return (
      'where half of the problems are hard, the share of the hard ones solved '
      f'so far is: {said(solved, "equal", "1", "16", "frozen")}. Held-out '
      f'pass@8 of hard problems: {said(pass_at(8, "hard"), "1", "frozen")}. '
      f'pass@1 of ordinary ones: '
      f'{said(pass_at(1, "ordinary"), "equal", "frozen")}.')


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables."""
  arms = tables.by_arm(results, LABELS)
  figures = {
      'hard, solved so far': solved,
      **{f'hard, pass@{k}': pass_at(k, 'hard') for k in KS},
      **{f'ordinary, pass@{k}': pass_at(k, 'ordinary') for k in (1, 16)}}
  return '\n\n'.join([
      tables.table(arms, LABELS, {
          **figures, 'entropy': mean_of('entropy'),
          'minutes': mean_of('minutes')}),
      tables.differences(arms, LABELS, [
          ('8', '1'), ('8', 'equal'), ('8', '16'), ('8', 'frozen'),
          ('1', 'frozen'), ('equal', 'frozen')], figures)])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@k of hard problems by k, and how many are solved by step."""
  pkpo.draw_arms(results, path, 'hard', LABELS, {
      'frozen': ('black', ':'), '1': ('#8ab6d6', '-'),
      'equal': ('#8ab6d6', '--'), '8': ('#1f5f99', '-'),
      '16': ('#0b2540', '-')})


CLAIM = runs.Claim(
    'pkpo_mixed', __doc__, 'PKPO where half of the problems are hard', CONFIG,
    ('task', 'arm'), ARMS, range(20, 28), pkpo.measure, solved, about, summary,
    sections, draw, chosen_by='the share of hard problems solved so far')

if __name__ == '__main__':
  runs.program(CLAIM)
