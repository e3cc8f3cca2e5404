"""PKPO's claims on small tasks: the effect of optimising pass@k on pass@k.

  python -m benchmarks.claims.pkpo --write

Trains configs/pkpo/countdown.py without an entropy bonus with k = 1, 2, 4, 8,
16 and with annealed k, with k = 1 and entropy bonuses, and
countdown_hard.py:mixed, half of whose problems are hard, with k = 1, 8, 16; one
more arm of each samples from the warm start without training. All have the same
number of steps.
"""

import pathlib
import statistics
from typing import Any, Sequence

from benchmarks.claims import runs, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import mean_of
from jaxrl_llm.base import schedules
from jaxrl_llm.configs.pkpo import countdown

CONFIG = 'configs/pkpo/countdown.py'
MIXED = 'configs/pkpo/countdown_hard.py:mixed'
KS = 1, 2, 4, 8, 16
SAMPLES = 32  # responses to each held-out problem
LAST = 50  # last steps, over which entropy is averaged
EVERY = 10  # a curve keeps one of this many steps

TITLES = {'default': 'The default task', 'mixed': 'Half hard, half ordinary',
          'hard': 'Hard problems alone'}
LABELS = {
    'frozen': 'not trained', **{str(k): f'k={k}' for k in KS},
    'annealed': 'k annealed from 2 to 1',
    **{f'entropy {bonus}': f'k=1, entropy bonus {bonus}'
       for bonus in ('.001', '.01', '.1')}}
# Sizes of the held-out sets, one number for each kind of problem.
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
    'mixed,frozen': Arm(_FROZEN, MIXED),
    **{f'mixed,{k}': Arm({'pkpo.k': k}, MIXED, 'mixed,' + (
        {1: '1'}.get(k, '8'))) for k in (1, 8, 16)},
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
  """Returns pass@k at the k that a run ends with, on the main problems."""
  (_, k), = schedules.pieces(result['k'])[-1:]
  return pass_at(k, [*result['heldout']][-1])(result)


def solved(result: tables.Result) -> float:
  """Returns the cumulative solve rate at the end."""
  return result['solved'][-1]


def by_task(
    results: Sequence[tables.Result],
) -> dict[str, dict[str, list[tables.Result]]]:
  """Groups the results by task and arm."""
  found = {task: tables.by_arm(results, LABELS, task=task) for task in TITLES}
  return {task: arms for task, arms in found.items() if arms}


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  annealed = ', '.join(sorted({
      f'{r["k"]} ({r["task"]})' for r in results if r['arm'] == 'annealed'}))
  return f'''\
configs/pkpo/countdown.py and countdown_hard.py: a model of 0.28 million \
parameters on Countdown, 16 samples a prompt, {results[0]["steps"]} steps, \
sloo_minus_one, advantages divided by the batch's standard deviation. On the \
default task there are 32 prompts per step, and the learning rate falls to 0. \
On the others there are 16 prompts per step, a constant learning rate, and \
rows of advantage 0 are left out of the mean. Arms have no entropy bonus \
unless they say so. pass@k is estimated from {SAMPLES} samples of each \
held-out problem (532 on the default task, 200 hard and 200 ordinary ones on \
the others). "Solved so far" is the share of training problems (of the hard \
ones, if there are any) with a right sample in some step. "Not trained" always \
samples from the warm start, which is the initial model of all runs. \
"Annealed" is pkpo.k={annealed}; these schedules were chosen on the same \
held-out problems, with other seeds. Of the bonuses, the largest is the best: \
larger ones, which the paper does not have, were not tried. With k=16, the \
whole group, only groups with a single right sample have a signal. On tasks \
with hard problems, the columns are about these unless they say otherwise.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = by_task(results)
  say = lambda task, arm, other, figure: tables.compared(
      arms[task], LABELS, arm, other, figure)
  default = lambda k, *pairs: f'pass@{k}: ' + '; '.join(
      say('default', arm, other, pass_at(k, 'all')) for arm, other in pairs)
  return (
      'on the default task, held-out '
      f'{default(8, ("4", "1"), ("8", "1"), ("8", "16"), ("8", "entropy .1"))}'
      f'. {default(1, ("4", "1"), ("8", "1"), ("annealed", "1"))}; '
      f'{say("default", "annealed", "2", pass_at(1, "all"))}. On a set of '
      'which half is hard, the share of the hard problems solved so far is: '
      f'{say("mixed", "8", "1", solved)}; {say("mixed", "8", "16", solved)}; '
      f'{say("mixed", "8", "frozen", solved)}. pass@1 of its ordinary '
      f'problems: {say("mixed", "8", "1", pass_at(1, "ordinary"))}.')


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables of each task."""
  parts = []
  for task, arms in by_task(results).items():
    sets = [*next(iter(arms.values()))[0]['heldout']]
    figures = {f'pass@{k}': pass_at(k, sets[-1]) for k in KS}
    others = {f'pass@{k}, ordinary': pass_at(k, sets[0])
              for k in (1, 16) if len(sets) > 1}
    pairs = [
        (arm, other) for arm, other in (
            ('2', '1'), ('4', '1'), ('8', '1'), ('8', '4'), ('8', '16'),
            ('4', '16'), ('4', 'frozen'), ('8', 'frozen'),
            ('annealed', '1'), ('annealed', '2'), ('annealed', '8'),
            *((arm, '1') for arm in LABELS if 'entropy' in arm),
            *((k, arm) for k in ('4', '8')
              for arm in LABELS if 'entropy' in arm))
        if {arm, other} <= arms.keys()]
    parts += [
        f'## {TITLES[task]}', tables.table(arms, LABELS, {
            **figures, **others, 'solved so far': solved,
            'entropy': mean_of('entropy'), 'minutes': mean_of('minutes')}),
        tables.differences(arms, LABELS, pairs, {
            **{f'pass@{k}': figures[f'pass@{k}'] for k in (1, 4, 8, 16)},
            **others, 'solved so far': solved})]
  return '\n\n'.join(parts)


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@k by k, and the solve rate by step, for each task."""
  looks = {
      'frozen': ('black', ':'), '1': ('#9ecae1', '-'), '2': ('#6baed6', '-'),
      '4': ('#3182bd', '-'), '8': ('#08519c', '-'), '16': ('#08204b', '-'),
      'annealed': ('#d1495b', '--'), 'entropy .1': ('#2e8b57', '--')}
  panels = []
  for task, arms in by_task(results).items():
    found = {arm: [{**r, 'ks': KS, 'pass@k': [
        *[*r['heldout'].values()][-1].values()]} for r in rows]
             for arm, rows in arms.items()}
    panels += [
        tables.Panel(found, 'ks', 'pass@k', ('k', 'held-out pass@k'),
                     TITLES[task], looks,
                     {'xscale': 'log', 'xticks': KS, 'xticklabels': KS}),
        tables.Panel(found, EVERY, 'solved', ('step', 'solved so far'),
                     TITLES[task], looks)]
  tables.draw(path, panels, LABELS)


CLAIM = runs.Claim(
    'pkpo', __doc__, 'PKPO: what optimising pass@k does to pass@k', CONFIG,
    ('task', 'arm'), ARMS, range(10, 15), measure, own, about, summary,
    sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
