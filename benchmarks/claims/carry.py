"""Responses carried over between steps, against steps that wait for all.

  python -m benchmarks.claims.carry --write

Trains configs/carry/countdown.py, whose responses have any number of attempts,
with `sampling.carry_over` and without. Both have the same learning rate, which
is constant, and both are compared after as many updates: a step of the first
trains on several batches or on none.
"""

import pathlib
from typing import Any, Sequence

import numpy as np

from benchmarks.claims import runs, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import end, mean_of

CONFIG = 'configs/carry/countdown.py'
LABELS = {'carry': 'carried over', 'wait': 'waiting'}
UPDATES = 300
SPENT = {'decode steps': 'decode_steps', 'seconds': 'elapsed',
         'generated tokens': 'generated'}
MEANS = {'slots in use': 'sampler/slot_use', 'mean length': 'response/length',
         'longest': 'response/length_max', 's per step': 'seconds/step',
         'waves of age': 'carry/age', 'tokens of older policies': 'carry/older',
         'prefilled tokens a step': 'carry/prefilled'}
# More steps than updates, for those that train on no batch.
ARMS = {
    'wait': Arm({'steps': UPDATES}),
    'carry': Arm({'steps': UPDATES + 100, 'sampling.carry_over': True,
                  'sampling.wave_steps': 128}),
}


def measure(*arm: Any) -> dict[str, Any]:
  """Trains an arm; see `runs.Claim`.

  Beside the curves, a row has 'decode_steps' up to each evaluation.
  """
  rows = runs.train_arm(*arm)
  steps = np.cumsum([row.get('sampler/steps', 0) for row in rows])
  return {
      **tables.curves_of(rows),
      'decode_steps': [float(sum_) for sum_, row in zip(steps, rows)
                       if 'eval/pass@1' in row],
      **tables.means_of(rows[1:], MEANS.values())}


def spent(name: str) -> tables.Figure:
  """Returns the function for what was spent until UPDATES updates."""
  return lambda result: float(np.interp(
      UPDATES, result['updates'], result[name])) if (
          result['updates'][-1] >= UPDATES) else None


def reached(name: str) -> tables.Figure:
  """Returns the function for a figure after UPDATES updates."""
  return lambda result: float(np.interp(
      UPDATES, result['updates'], tables.smoothed(result, name)))


FIGURES = {'pass@1': reached('pass@1'), 'pass@8': reached('pass@8')}


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  arms = tables.by_arm(results, LABELS)
  length, longest = (tables.mean_and_error(
      map(mean_of(MEANS[name]), arms['wait']), 0)
                     for name in ('mean length', 'longest'))
  return f'''\
{CONFIG}: a model of 0.28 million parameters on Countdown, whose responses \
have any number of attempts, of which the last counts. They have {length} \
tokens on average, the longest of a step {longest}, and the limit is 128. A \
step has 256 responses on 64 decode slots. Carried over, a step ends after 128 \
decode steps; what is unfinished then goes on in the next one. Figures are \
after {UPDATES} \
updates, by interpolation between evaluations. pass@1 and pass@8 are measured \
on 468 held-out problems with 8 samples each, and averaged over {tables.LAST} \
evaluations. Seconds leave out evaluations, checkpoints and compilation.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  times = '; '.join(
      f'{name} {_times(arms, column)}' for name, column in SPENT.items())
  return (
      f'to {UPDATES} updates, steps that wait need so many times as much as '
      f'those that carry responses over: {times}. Held-out ' + '; '.join(
          f'{name}: ' + tables.compared(arms, LABELS, 'carry', 'wait', figure)
          for name, figure in FIGURES.items()) + '.')


def _times(arms: tables.Arms, name: str) -> str:
  """Says how many times as much steps need that wait."""
  found = tables.pairs(arms, 'wait', 'carry', spent(name))
  if any(None in pair for pair in found):
    return 'not reached'
  return tables.ratio([wait / carry for wait, carry in found])


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables of the arms."""
  arms = tables.by_arm(results, LABELS)
  return '\n\n'.join([
      tables.table(arms, LABELS, {
          **FIGURES, **{name: (spent(column), 0)
                        for name, column in SPENT.items()},
          **{f'pass@1, equal {name}': tables.at_equal(arms, column)
             for name, column in SPENT.items()},
          **{name: mean_of(column) for name, column in MEANS.items()}}),
      tables.differences(arms, LABELS, [('carry', 'wait')], {
          **FIGURES, **{f'pass@1, equal {name}': tables.at_equal(arms, column)
                        for name, column in SPENT.items()}})])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 by updates, decode steps and seconds."""
  arms = tables.by_arm(results, LABELS)
  looks = {arm: (f'C{i}', '-') for i, arm in enumerate(LABELS)}
  tables.draw(path, [
      tables.Panel(arms, x, 'pass@1', (text, 'held-out pass@1'), '', looks)
      for x, text in (('updates', 'updates'), ('decode_steps', 'decode steps'),
                      ('elapsed', 'seconds'))], LABELS)


CLAIM = runs.Claim(
    'carry', __doc__, 'Responses carried over between steps', CONFIG, ('arm',),
    ARMS, range(10, 15), measure, end(), about, summary, sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
