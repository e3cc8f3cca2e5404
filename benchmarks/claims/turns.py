"""A tool against none, on calculations of two steps.

  python -m benchmarks.claims.turns --write

Trains configs/turns/calculator.py, whose model may call a calculator, and
`:without`, whose model has to answer by itself and was shown right answers
alone before. Both have the same problems, steps and number of trajectories.
"""

import pathlib
from typing import Any, Sequence

from benchmarks.claims import runs, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import end, mean_of

CONFIG = 'configs/turns/calculator.py'
LABELS = {'with': 'with the calculator', 'without': 'without'}
FIGURES = {'pass@1': end(), 'pass@8': end('pass@8')}
MEANS = {'turns': 'turns/count', 'tokens written': 'response/length',
         'tokens read': 'turns/observed', 'entropy': 'response/entropy',
         's per step': 'seconds/step'}
_FIELDS = {'eval.every': 10}
ARMS = {
    'with': Arm(_FIELDS, rate='with'),
    'without': Arm(_FIELDS, f'{CONFIG}:without', 'without'),
}


def measure(*arm: Any) -> dict[str, Any]:
  """Trains an arm; see `runs.Claim`."""
  rows = runs.train_arm(*arm)
  return {**tables.curves_of(rows), **tables.means_of(
      rows[1:], MEANS.values())}


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  starts = [' and '.join(
      str(tables.mean_and_error(map(tables.start(name), found)))
      for name in FIGURES) + f' {LABELS[arm]}'
            for arm, found in tables.by_arm(results, LABELS).items()]
  return f'''\
{CONFIG}: a model of 0.1 million parameters on products of two numbers of two \
digits, plus or minus a third. A calculator takes two numbers at a time. The \
warm start with it shows one right trajectory in ten, that without it right \
answers alone. pass@1 and pass@8 are measured on 512 held-out problems with 8 \
samples each and averaged over the last {tables.LAST} evaluations. Before \
training they are {"; ".join(starts)}. The rates of the arm with the \
calculator, and the first three without it, were tried with an earlier version \
of the code on another machine. So were five runs with the calculator at the \
same rate, of seeds 10 to 14, which are not in the tables: their pass@1 was \
.987, .845, .609, .992 and .988. They were replaced when lower rates were \
tried without it.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  return 'held-out ' + '; '.join(
      f'{name}: ' + tables.compared(arms, LABELS, 'with', 'without', figure)
      for name, figure in FIGURES.items()) + '.'


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables of the arms."""
  arms = tables.by_arm(results, LABELS)
  return '\n\n'.join([
      tables.table(arms, LABELS, {
          **FIGURES, **{f'pass@1, equal {title}': tables.at_equal(arms, spent)
                        for title, spent in (
                            ('trajectories', 'samples'),
                            ('seconds', 'elapsed'))},
          'trajectories': (lambda r: r['samples'][-1], 0),
          **{title: mean_of(name) for title, name in MEANS.items()}}),
      tables.differences(arms, LABELS, [('with', 'without')], FIGURES)])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 by trajectories and by seconds."""
  arms = tables.by_arm(results, LABELS)
  looks = {arm: (f'C{i}', '-') for i, arm in enumerate(LABELS)}
  tables.draw(path, [
      tables.Panel(arms, x, 'pass@1', (text, 'held-out pass@1'), '', looks)
      for x, text in (
          ('samples', 'trajectories'), ('elapsed', 'seconds'))], LABELS)


CLAIM = runs.Claim(
    'turns', __doc__, 'A calculator against none', CONFIG, ('arm',), ARMS,
    range(15, 20), measure, end(), about, summary, sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
