"""CBS where the largest |advantage| misleads.

  python -m benchmarks.claims.cbs_misled --write

Trains on Countdown with flipped verdicts of long responses, see
`benchmarks.claims.misled`, on 16 of 512 responses a step: on random ones, on
those with the largest |advantage|, on those that CBS picks, with two learning
rates of its scheduler, and on those that the same scheduler picks if it learns
from a reward of each row. The setting was made to give learning a chance: few
picks, a smooth gain, no entropy penalty and little exploration.
"""

import contextlib
import pathlib
import statistics
from typing import Any, Mapping, Sequence

from benchmarks.claims import misled, runs, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import end
from jaxrl_llm import config as config_lib

CONFIG = 'configs/cbs/countdown.py'
PICKED, CANDIDATES = 16, 512
LABELS = {
    'random': 'random', 'largest': 'largest |advantage|', 'cbs': 'CBS',
    'cbs_fast': 'CBS, ten times the rate of its scheduler',
    'rows': 'a reward of each row'}
AGAINST = [(arm, 'largest') for arm in ('cbs', 'cbs_fast', 'rows')]
CORRELATIONS = {
    f'scores and {feature}': f'cbs/correlation/{feature}'
    for feature in ('length', 'advantage', 'group_std')}
SHARES = {  # of the responses; a flipped verdict rewards a malformed one too
    'flipped': 'verdict/flipped', 'malformed': 'verdict/malformed',
    'reward of the picked': 'batch/reward'}
_JOB = {
    'task.name': 'benchmarks/claims/misled.py', 'steps': 300,
    'prompts_per_step': CANDIDATES // 8, 'learner.updates': 1,
    'eval.every': 30}
_SCOPE = {'scope': 'intra_group', 'pool': True, 'keep': PICKED / CANDIDATES}
_SCHEDULER = {
    'warmup': 12, 'epsilon_decay': 0.03, 'epsilon_min': 0.02, 'alpha': 0.1,
    'ablate': 'no_entropy', 'learning_rate': 1e-3}


def _arm(selection: str, rate: str, **options: Any) -> Arm:
  """Makes an arm with options of its selection."""
  return Arm({**_JOB, 'selection': selection, **{
      f'{selection}.{name}': value for name, value in options.items()}},
             rate=rate)


ARMS = {
    'random': _arm('random', 'random', rows=PICKED),
    'largest': _arm('largest_advantage', 'largest', **_SCOPE),
    'cbs': _arm('cbs', 'cbs', **_SCOPE, **_SCHEDULER),
    'cbs_fast': _arm('cbs', 'cbs', **_SCOPE, **{
        **_SCHEDULER, 'learning_rate': 1e-2}),
    # It is a learner of `misled` that picks.
    'rows': _arm('largest_advantage', 'rows', **_SCOPE),
}


def measure(
    config: str, name: str, folder: pathlib.Path, fields: Mapping[str, Any],
) -> dict[str, Any]:
  """Trains an arm; see `runs.Claim`."""
  picking: Any = contextlib.nullcontext()
  if name.split(',')[0] == 'rows':
    picking = misled.learning(
        config_lib.load(config, fields), misled.Scheduler(**_SCHEDULER))
  with picking as learner:
    rows = runs.train_arm(config, name, folder, fields)
  # A step without such a verdict lacks its share.
  half = [{**dict.fromkeys(SHARES.values(), 0.0), **row}
          for row in rows[1:][len(rows[1:]) // 2:]]
  if learner is not None:
    half = [{**row, **{f'cbs/correlation/{feature}': value
                       for feature, value in found.items()}}
            for row, found in zip(half, learner.correlations[-len(half):])]
  return {
      **tables.curves_of(rows), **tables.means_of(half, (
          'response/entropy', 'response/length', *SHARES.values(),
          *CORRELATIONS.values()))}


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  error = statistics.fmean(r['error'] for r in results)
  return f'''\
{CONFIG} with benchmarks/claims/misled.py: a model of 0.28 million parameters \
on Countdown, {_JOB["steps"]} steps of {CANDIDATES // 8} prompts with 8 \
samples, one update on {PICKED} of the {CANDIDATES} responses. The verdict of \
{misled.Options().flipped:.0%} of the responses of {misled.Options().long} \
characters and more is flipped in training, always the same for the same text: \
of all problems with four or five numbers, and half of those with three. A \
flipped malformed response is rewarded, and the next batch's gradient, by \
which "a reward of each row" learns, has flipped verdicts as well. \
The setting was made to give CBS a chance: few picks, averages with alpha .1, \
no entropy penalty, epsilon down to .02. A reward of each row is an inner \
product of gradients (benchmarks/claims/misled.py). pass@1 is measured without \
flips on 532 held-out problems and averaged over the last {tables.LAST} \
evaluations, each with a standard error of {error:.3f} within a run; before \
training it is {tables.before(results)}. Correlations of scores and features \
are means over the second half.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  said = '; '.join(tables.compared(arms, LABELS, *pair, end())
                   for pair in AGAINST)
  return (f'with flipped verdicts of long responses, held-out pass@1 after '
          f'training on {PICKED} of {CANDIDATES} responses a step is: {said}.')


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables."""
  arms = tables.by_arm(results, LABELS)
  return '\n\n'.join([
      tables.table(arms, LABELS, {
          'pass@1 at the end': end(), 'pass@8 at the end': end('pass@8'),
          **{title: (tables.mean_of(key), 2) for title, key in (
              ('entropy', 'response/entropy'), ('length', 'response/length'),
              *SHARES.items(), *CORRELATIONS.items())}}),
      tables.differences(arms, LABELS, [
          *AGAINST, ('rows', 'cbs'), *(
              (arm, 'random') for arm in ('largest', 'cbs', 'rows'))],
                         {'pass@1': end(), 'pass@8': end('pass@8')})])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 by samples."""
  looks = {'random': ('0.5', ':'), 'largest': ('C2', '-'), 'cbs': ('C0', '-'),
           'cbs_fast': ('C0', '--'), 'rows': ('C1', '-')}
  tables.draw(path, [tables.Panel(
      tables.by_arm(results, LABELS), 'samples', 'pass@1',
      ('sampled responses', 'held-out pass@1'), '', looks)], LABELS)


CLAIM = runs.Claim(
    'cbs_misled', __doc__, 'CBS where the largest |advantage| misleads', CONFIG,
    ('arm',), ARMS, range(82, 98), measure, end(), about, summary, sections,
    draw)

if __name__ == '__main__':
  runs.program(CLAIM)
