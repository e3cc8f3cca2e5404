"""PKPO's claims on a small task: the effect of optimising pass@k on pass@k.

  python -m benchmarks.claims.pkpo --write

Trains configs/pkpo/countdown.py without an entropy bonus with k = 1, 2, 4, 8,
16, with annealed k, and with k = 1 and entropy bonuses; one more arm samples
from the warm start without training. All have the same number of steps. See
`benchmarks.claims.pkpo_bonus` for bonuses with learning rates of their own, and
`benchmarks.claims.pkpo_mixed` for hard problems.
"""

import pathlib
import statistics
from typing import Any, Mapping, Sequence

from benchmarks.claims import runs, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import mean_of
from jaxrl_llm.base import schedules
from jaxrl_llm.configs.pkpo import countdown

CONFIG = 'configs/pkpo/countdown.py'
KS = 1, 2, 4, 8, 16
SAMPLES = 32  # responses to each held-out problem
LAST = 50  # last steps, over which entropy is averaged
EVERY = 10  # a curve keeps one of this many steps

LABELS = {
    'frozen': 'not trained', **{str(k): f'k={k}' for k in KS},
    'annealed': 'k annealed from 2 to 1',
    **{f'entropy {bonus}': f'k=1, entropy bonus {bonus}'
       for bonus in ('.001', '.01', '.1')}}
# Sizes of each task's held-out sets, one number for each kind of problem.
HELDOUT = {
    'default': {'all': (48, 250, 170, 64)},
    'mixed': {'ordinary': (32, 60, 60, 48, 0, 0),
              'hard': (0, 0, 0, 0, 100, 100)},
}
_PLAIN = {'loss.entropy_bonus': 0.0}
# A learning rate of 0 keeps the warm start's parameters.
_FROZEN = {**_PLAIN, runs.RATE: 0.0, 'pkpo.k': 16, 'drop_zero_advantage': True}
# k = 16, the whole group, collapses on the default task.
ARMS = {
    'default,frozen': Arm(_FROZEN),
    **{f'default,{k}': Arm({**_PLAIN, 'pkpo.k': k}, rate='default,' + (
        {1: '1', 16: '16'}.get(k, '4'))) for k in KS},
    'default,annealed': Arm(
        {**_PLAIN, 'pkpo.k': countdown.ANNEALED}, rate='default,4'),
    **{f'default,entropy {bonus}': Arm(
        {'pkpo.k': 1, 'loss.entropy_bonus': float(bonus)}, rate='default,1')
       for bonus in ('.001', '.01', '.1')},
}


def measure(
    config: str, name: str, folder: pathlib.Path, fields: dict[str, Any],
) -> dict[str, Any]:
  """Trains and evaluates an arm; see `runs.Claim`."""
  from jaxrl_llm import config as config_lib
  fields = {**fields, 'eval.every': 0, 'eval.samples': 1, 'eval.k': 1}
  rows = runs.train_arm(config, name, folder, fields)[1:]
  heldout = {}
  for problems, sizes in HELDOUT[name.partition(',')[0]].items():
    found, _ = runs.evaluated(config, name, folder, {
        **fields, 'task.heldout': sizes, 'eval.samples': SAMPLES, 'eval.k': KS})
    heldout[problems] = {
        f'pass@{k}': round(found[f'pass@{k}'], 4) for k in KS}
  loaded = config_lib.load(config, fields)
  solved = [row['solve_rate'] for row in rows]
  if hard := loaded.task.train[4:]:
    solved = [statistics.fmean(
        (row['solve_rate/product3'], row['solve_rate/product4']),
        weights=hard) for row in rows]
  return {
      'k': loaded.pkpo.k, 'bonus': loaded.loss.entropy_bonus,
      'steps': len(rows), 'heldout': heldout,
      'minutes': sum(row['seconds/step'] for row in rows) / 60,
      'entropy': round(statistics.fmean(
          row['response/entropy'] for row in rows[-LAST:]), 4),
      'solved': [round(value, 4) for value in solved[EVERY - 1::EVERY]]}


def pass_at(k: int, problems: str) -> tables.Figure:
  """Returns the function for pass@k on a set of held-out problems."""
  return lambda result: result['heldout'][problems][f'pass@{k}']


def own(result: tables.Result) -> float:
  """Returns pass@k at the k that a run ends with."""
  (_, k), = schedules.pieces(result['k'])[-1:]
  return pass_at(k, 'all')(result)


def solved(result: tables.Result) -> float:
  """Returns the cumulative solve rate at the end."""
  return result['solved'][-1]


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  return f'''\
{CONFIG}: a model of 0.28 million parameters on Countdown, 32 prompts with 16 \
samples, {results[0]["steps"]} steps, a learning rate that falls to 0, \
sloo_minus_one, advantages divided by the batch's standard deviation. Arms \
have no entropy bonus unless they say so. pass@k is estimated from {SAMPLES} \
samples of each of 532 held-out problems. "Solved so far" is the share of \
training problems with a right sample in some step. "Not trained" always \
samples from the warm start, which is the initial model of all runs. \
"Annealed" is pkpo.k={countdown.ANNEALED}, which was chosen on the same \
held-out problems, with other seeds. Of the bonuses, the largest has the \
highest pass@8: larger ones, which the paper does not have, were not tried \
here. With k=16, the whole group, only groups with a single right sample have \
a signal.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  said = lambda k, *pairs: f'pass@{k}: ' + '; '.join(tables.compared(
      arms, LABELS, *pair, pass_at(k, 'all')) for pair in pairs)
  high = said(8, ('4', '1'), ('8', '1'), ('8', '16'),
              ('4', 'entropy .1'), ('8', 'entropy .1'))
  low = said(1, ('4', '1'), ('8', '1'), ('annealed', '1'), ('annealed', '2'))
  return f'on the default task, held-out {high}. {low}.'


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables."""
  arms = tables.by_arm(results, LABELS)
  figures = {f'pass@{k}': pass_at(k, 'all') for k in KS}
  bonuses = [arm for arm in arms if 'entropy' in arm]
  pairs = [
      ('2', '1'), ('4', '1'), ('8', '1'), ('8', '4'), ('8', '16'), ('4', '16'),
      *((k, 'frozen') for k in ('1', '4', '8', '16')),
      *(('annealed', k) for k in ('1', '2', '8')),
      *((arm, '1') for arm in bonuses),
      *((k, arm) for k in ('4', '8') for arm in bonuses)]
  return '\n\n'.join([
      tables.table(arms, LABELS, {
          **figures, 'solved so far': solved, 'entropy': mean_of('entropy'),
          'minutes': mean_of('minutes')}),
      tables.differences(arms, LABELS, pairs, {
          **{f'pass@{k}': figures[f'pass@{k}'] for k in (1, 4, 8, 16)},
          'solved so far': solved})])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@k by k, and the solve rate by step."""
  draw_arms(results, path, 'all', LABELS, {
      'frozen': ('black', ':'), '1': ('#9ecae1', '-'), '2': ('#6baed6', '-'),
      '4': ('#3182bd', '-'), '8': ('#08519c', '-'), '16': ('#08204b', '-'),
      'annealed': ('#d1495b', '--'), 'entropy .1': ('#2e8b57', '--')})


def draw_arms(
    results: Sequence[tables.Result], path: pathlib.Path, problems: str,
    labels: Mapping[str, str], looks: Mapping[str, tuple[str, str]]) -> None:
  """Draws pass@k on some problems by k, and the solve rate by step."""
  arms = tables.by_arm(
      [{**r, 'ks': KS, 'pass@k': [*r['heldout'][problems].values()]}
       for r in results], labels)
  tables.draw(path, [
      tables.Panel(arms, 'ks', 'pass@k', ('k', 'held-out pass@k'), '', looks,
                   {'xscale': 'log', 'xticks': KS, 'xticklabels': KS}),
      tables.Panel(arms, EVERY, 'solved', ('step', 'solved so far'), '',
                   looks)], labels)


CLAIM = runs.Claim(
    'pkpo', __doc__, 'PKPO: what optimising pass@k does to pass@k', CONFIG,
    ('task', 'arm'), ARMS, range(10, 15), measure, own, about, summary,
    sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
