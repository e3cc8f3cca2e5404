"""Responses carried over between steps, against steps that wait for all.

  python -m benchmarks.claims.carry --write

Trains configs/carry/countdown.py, whose responses have any number of attempts,
with `sampling.carry_over` and without. Both have the same learning rate, which
is constant and was chosen for the arm that waits, and both are compared after
as many updates: a step of the other trains on several batches or on none.
"""

import functools
import pathlib
from typing import Any, NamedTuple, Sequence

import numpy as np

from benchmarks.claims import runs, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import end, mean_of

LABELS = {'carry': 'carried over', 'wait': 'waiting'}
SPENT = {'decode steps': 'decode_steps', 'seconds': 'elapsed',
         'generated tokens': 'generated'}
MEANS = {'slots in use': 'sampler/slot_use', 'mean length': 'response/length',
         'longest': 'response/length_max', 's per step': 'seconds/step',
         'of it sampling': 'seconds/sample', 'of it scores': 'seconds/score',
         'waves of age': 'carry/age', 'tokens of older policies': 'carry/older',
         'prefilled tokens a step': 'carry/prefilled'}


class Setting(NamedTuple):
  """A job that is compared.

  Attributes:
    updates: after which the arms are compared.
    figures: of its evaluations, such as pass@1.
    told: sentences on the job, with {length} and {longest}.
  """
  updates: int
  figures: Sequence[str]
  told: str

  def spent(self, name: str) -> tables.Figure:
    """Returns the function for what was spent until that many updates."""
    return lambda result: float(np.interp(
        self.updates, result['updates'], result[name])) if (
            result['updates'][-1] >= self.updates) else None

  def reached(self) -> dict[str, tables.Figure]:
    """Returns the functions for the figures after that many updates."""
    return {name: lambda result, name=name: float(np.interp(
        self.updates, result['updates'], tables.smoothed(result, name)))
            for name in self.figures}


def arms(
    updates: int, steps: int, wave_steps: int, **fields: Any) -> dict[str, Arm]:
  """Returns the arms; one has more steps, since some train on no batch."""
  return {
      'wait': Arm({**fields, 'steps': updates}, rate='wait'),
      'carry': Arm({
          **fields, 'steps': steps, 'sampling.carry_over': True,
          'sampling.wave_steps': wave_steps}, rate='wait')}


def measure(*arm: Any) -> dict[str, Any]:
  """Trains an arm; see `runs.Claim`.

  Beside the curves, a row has 'decode_steps' up to each evaluation.
  """
  rows = runs.train_arm(*arm)
  steps = np.cumsum([row.get('sampler/steps', 0) for row in rows])
  return {
      **tables.curves_of(rows),
      'decode_steps': [float(total) for total, row in zip(steps, rows)
                       if 'eval/pass@1' in row],
      **tables.means_of(rows[1:], MEANS.values())}


def about(setting: Setting, results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  waiting = tables.by_arm(results, LABELS)['wait']
  of = {name: tables.mean_and_error(map(mean_of(MEANS[name]), waiting), 0)
        for name in ('mean length', 'longest')}
  return setting.told.format(
      length=of['mean length'], longest=of['longest']) + f'''\
 Figures are after {setting.updates} updates, by interpolation between \
evaluations, of which each is a mean of {tables.LAST}. Seconds leave out \
evaluations, checkpoints and compilation.'''


def summary(setting: Setting, results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  found = tables.by_arm(results, LABELS)
  times = '; '.join(
      f'{name} {_times(setting, found, name)}' for name in SPENT)
  reached = '; '.join(
      f'{name}: ' + tables.compared(found, LABELS, 'carry', 'wait', figure)
      for name, figure in setting.reached().items())
  return (
      f'to {setting.updates} updates, steps that wait need so many times as '
      f'much as those that carry responses over: {times}. Held-out {reached}.')


def _times(setting: Setting, found: tables.Arms, name: str) -> str:
  """Says how many times as much steps need that wait."""
  pairs = tables.pairs(found, 'wait', 'carry', setting.spent(SPENT[name]))
  if any(None in pair for pair in pairs):
    return 'not reached'
  return tables.ratio([wait / carry for wait, carry in pairs])


def sections(setting: Setting, results: Sequence[tables.Result]) -> str:
  """Returns the tables of the arms."""
  found, figures = tables.by_arm(results, LABELS), setting.reached()
  equal = {f'pass@1, equal {name}': tables.at_equal(found, column)
           for name, column in SPENT.items()}
  return '\n\n'.join([
      tables.table(found, LABELS, {
          **figures, **{name: (setting.spent(column), 0)
                        for name, column in SPENT.items()}, **equal,
          **{name: mean_of(column) for name, column in MEANS.items()}}),
      tables.differences(
          found, LABELS, [('carry', 'wait')], {**figures, **equal})])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 by updates, decode steps and seconds."""
  found = tables.by_arm(results, LABELS)
  looks = {arm: (f'C{i}', '-') for i, arm in enumerate(LABELS)}
  tables.draw(path, [
      tables.Panel(found, x, 'pass@1', (text, 'held-out pass@1'), '', looks)
      for x, text in (('updates', 'updates'), ('decode_steps', 'decode steps'),
                      ('elapsed', 'seconds'))], LABELS)


def claim(
    name: str, doc: str, title: str, config: str, arms_: dict[str, Arm],
    seeds: Sequence[int], setting: Setting) -> runs.Claim:
  """Makes the claim of a setting, see `runs.Claim`."""
  of = lambda function: functools.partial(function, setting)
  return runs.Claim(
      name, doc, title, config, ('arm',), arms_, seeds, measure, end(),
      of(about), of(summary), of(sections), draw)


CONFIG = 'configs/carry/countdown.py'
CLAIM = claim(
    'carry', __doc__, 'Responses carried over between steps', CONFIG,
    arms(300, 400, 128), range(10, 15), Setting(300, ('pass@1', 'pass@8'), f'''\
{CONFIG}: a model of 0.28 million parameters on Countdown, whose responses \
have any number of attempts, of which the last counts. They have {{length}} \
tokens on average, the longest of a step {{longest}}, and the limit is 128. A \
step has 256 responses on 64 decode slots. Carried over, a step ends after 128 \
decode steps; what is unfinished then goes on in the next one. pass@1 and \
pass@8 are measured on 468 held-out problems with 8 samples each.'''))

if __name__ == '__main__':
  runs.program(CLAIM)
