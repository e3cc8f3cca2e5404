"""Jackpot by learning rate, against how much its normaliser varies.

  python -m benchmarks.claims.jackpot_rates --write

Trains configs/jackpot/countdown.py with 32 and 128 updates on the rollouts of
one policy, by clip, no-clip TIS with Jackpot's cap, Jackpot and, with 128, its
expected mask, and configs/jackpot/countdown_actor.py with a frozen actor,
without a correction, by TIS and by Jackpot, at learning rates from 1/27 of the
config's up. No rate is chosen beforehand.
"""

import pathlib
import statistics
from typing import Any, Mapping, Sequence

import numpy as np

from benchmarks.claims import jackpot, jackpot_128, jackpot_actor, runs, tables
from benchmarks.claims.jackpot import CONFIG, last
from benchmarks.claims.runs import Arm
from jaxrl_llm.configs.jackpot import countdown, countdown_actor

UPDATES = 768  # optimiser steps of a run on stale rollouts
TIMES = {  # learning rates of each task, times the config's
    '32': (1 / 9, 1 / 3, 1, 2), '128': (1 / 27, 1 / 9, 1 / 3, 1),
    'frozen': (1 / 27, 1 / 9, 1 / 3)}
SEEDS = range(27, 33)
FEW = 4  # seeds at 32, where Jackpot and TIS were equal
TITLES = {'32': '32 updates on the rollouts of one policy',
          '128': '128 updates on the rollouts of one policy',
          'frozen': 'a frozen actor, which is smaller'}
LABELS = {**jackpot_128.LABELS, 'none': 'no correction', 'tis': 'TIS'}
TIS = {'32': 'no_clip_tis', '128': 'no_clip_tis', 'frozen': 'tis'}
AGAINST = {
    '32': (('jackpot', 'no_clip_tis'), ('jackpot', 'clip'),
           ('no_clip_tis', 'clip')),
    '128': (('jackpot', 'no_clip_tis'), ('jackpot', 'clip'),
            ('no_clip_tis', 'clip'), ('expected', 'jackpot'),
            ('expected', 'no_clip_tis')),
    'frozen': (('jackpot', 'tis'), ('jackpot', 'none'))}
FIGURES = {'best': 'at the best rate', 'area': 'averaged over rates'}
SAID = '128', 'frozen'  # in the summary, Jackpot against TIS


def _arms() -> dict[str, Arm]:
  """Makes the arms, `task,arm,times`."""
  made = {}
  for task, times in TIMES.items():
    frozen = task == 'frozen'
    loaded = (countdown_actor if frozen else countdown).get_config()
    fields = {
        'none': jackpot_actor.ARMS['frozen_none'].fields,
        'tis': {**jackpot_actor.ARMS['frozen_tis'].fields,
                'loss.importance_cap': 3.0},
        'jackpot': jackpot_actor.ARMS['frozen_jackpot'].fields,
    } if frozen else {
        name: {**jackpot.of_stale(int(task), UPDATES), **own}
        for name, own in jackpot_128.FIELDS.items()
        if name != 'expected' or task == '128'}
    steps = loaded.steps if frozen else UPDATES // int(task)
    config = jackpot_actor.CONFIG if frozen else CONFIG
    made.update({
        f'{task},{name},{factor:.3g}': Arm(
            {**own, 'eval.every': steps,  # the last one alone is used
             runs.RATE: loaded.optimizer.learning_rate * factor}, config,
            seeds=SEEDS[:FEW] if task == '32' else SEEDS)
        for factor in times for name, own in fields.items()})
  return made


ARMS = _arms()


def measure(config: str, *arm: Any) -> dict[str, Any]:
  """Trains an arm; see `runs.Claim`."""
  of = jackpot_actor if config == jackpot_actor.CONFIG else jackpot
  return of.measure(config, *arm)


def by_rate(results: Sequence[tables.Result], task: str) -> tables.Arms:
  """Returns rows of arms at each seed, with figures over all rates.

  A row has lists by rate: 'times', 'pass@1' at the end and 'z_std', the mean
  standard deviation of the normaliser, where the arm has one. 'start' is pass@1
  before training, 'best' at the rate with the best mean over the arm's other
  seeds; 'area' is the mean of pass@1 over the logarithm of the rate. Seeds that
  lack a rate are left out.
  """
  found: dict[str, dict[int, dict[str, tables.Result]]] = {}
  for row in results:
    if row['task'] == task:
      found.setdefault(row['arm'], {}).setdefault(
          row['seed'], {})[row['times']] = row
  names = [f'{factor:.3g}' for factor in TIMES[task]]
  arms = {arm: _over_rates(task, {
      seed: [rows[name] for name in names] for seed, rows in seeds.items()
      if {*names} <= rows.keys()}) for arm, seeds in found.items()}
  return {arm: arms[arm] for arm in LABELS if arms.get(arm)}


def _over_rates(
    task: str, seeds: Mapping[int, Sequence[tables.Result]],
) -> list[dict[str, Any]]:
  """Returns the rows of an arm; see `by_rate`."""
  if not seeds:
    return []
  ends = {seed: [last(row) for row in rows] for seed, rows in seeds.items()}
  logs, best = np.log(TIMES[task]), {seed: int(np.argmax(np.mean([
      values for other, values in ends.items()
      if other != seed or len(ends) == 1], 0))) for seed in ends}
  return [{
      'seed': seed, 'times': list(TIMES[task]), 'pass@1': values,
      'z_std': [statistics.fmean(row['z_std']) for row in seeds[seed]
                if row['z_std']],
      'start': tables.start()(seeds[seed][0]), 'best': values[best[seed]],
      'area': float(np.trapezoid(values, logs) / (logs[-1] - logs[0]))}
          for seed, values in ends.items()]


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  start = statistics.fmean(map(tables.start(), results))
  return f'''\
{CONFIG} and countdown_actor.py: a policy of 0.28 million parameters on \
Countdown, {UPDATES} updates of {jackpot.ROWS} responses on stale rollouts, \
384 on those of the frozen actor, after a warm-up of 32. No-clip TIS weights \
by min(p_new / p_old, 3), and TIS by as much: the cap of Jackpot's weights. \
pass@1 is measured on 532 held-out problems at the end; before training it is \
{start:.3f}. The best rate of an arm is, for each seed, the one with the best \
mean over the other seeds. The average over rates is over the \
logarithm of the rate, from 1/9 to 2 times that of the config with 32 updates, \
1/27 to 1 with 128 and 1/27 to 1/3 with the frozen actor; the rates at its \
ends count half, as in any trapezoid. With 32 updates there are {FEW} of the \
seeds.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  parts = []
  for task in SAID:
    arms = by_rate(results, task)
    said = '; '.join(f'{words}, ' + tables.compared(
        arms, LABELS, *AGAINST[task][0], tables.mean_of(name))
                     for name, words in FIGURES.items())
    parts.append(f'with {TITLES[task]}: {said}')
  return f'held-out pass@1 is, {". ".join(parts).replace(". w", ". W")}.'


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables of each task."""
  parts = []
  for task, title in TITLES.items():
    arms = by_rate(results, task)
    at = lambda i, name: lambda row: row[name][i]
    rates = [(f'rate x {factor:.3g}', i)
             for i, factor in enumerate(TIMES[task])]
    figures = {words: tables.mean_of(name) for name, words in FIGURES.items()}
    figures.update({name: at(i, 'pass@1') for name, i in rates})
    parts += [
        f'## {title.capitalize()}', tables.table(arms, LABELS, figures),
        f'Best rates: {best_rates(arms)}.',
        'Standard deviation of Z:', tables.table(
            {arm: rows for arm, rows in arms.items()
             if all(row['z_std'] for row in rows)}, LABELS,
            {name: at(i, 'z_std') for name, i in rates}),
        tables.differences(arms, LABELS, AGAINST[task], figures)]
  return '\n\n'.join([*parts, '''## Gain over TIS by the deviation of Z

Slopes of pass@1 minus that of TIS at the same rate against the standard \
deviation of Z, by least squares within each seed: over all rates, which \
those where the policy collapses lead, and over those at which one of the two \
ends above the start, which selects by the outcome.''', slopes(results)])


def best_rates(arms: tables.Arms) -> str:
  """Says the best rate of each arm, and whether no rate beyond it was tried."""
  said = []
  for arm, rows in arms.items():
    times = rows[0]['times']
    best = int(np.argmax(np.mean([row['pass@1'] for row in rows], 0)))
    end = {0: ', the lowest', len(times) - 1: ', the highest'}.get(best, '')
    said.append(f'{LABELS[arm]} x {times[best]:.3g}{end}')
  return '; '.join(said)


def slopes(results: Sequence[tables.Result]) -> str:
  """Returns the table of the slopes of gains."""
  lines = []
  for least in False, True:
    for name, rows in gains(results, least).items():
      found = [float(np.polyfit(row['z_std'], row['gain'], 1)[0])
               for row in rows if np.ptp(row['z_std'] or [0.0]) > 0]
      if len(found) > 1:
        lines.append([name + ', rates that learn' * least,
                      str(len(rows[0]['gain'])),
                      tables.told(tables.student(found))])
  return tables.markdown(['', 'rates', 'slope'], lines)


def gains(
    results: Sequence[tables.Result], learning: bool = False,
) -> dict[str, list[dict[str, Any]]]:
  """Returns the gains over TIS by rate, of each task and form of the mask.

  Args:
    results: of all arms.
    learning: leave out the rates at which both end below the start in the mean.
      This selects by the outcome.
  """
  found = {}
  for task, title in TITLES.items():
    arms = by_rate(results, task)
    for arm in ('jackpot', 'expected'):
      rows = tables.pairs(arms, arm, TIS[task], lambda row: row)
      if not rows:
        continue
      ends = np.array([[row['pass@1'] for row in pair] for pair in rows])
      kept = (ends.mean(0).max(0) > np.mean([row['start'] for row, _ in rows])
              ) | (not learning)
      found[f'{LABELS[arm]}, {title}'] = [
          {'seed': ours['seed'], 'gain': (mine - theirs)[kept].tolist(),
           'z_std': np.array(ours['z_std'])[kept].tolist()}
          for (ours, _), (mine, theirs) in zip(rows, ends)]
  return found


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 by rate, and Jackpot's gain by the deviation of Z."""
  looks = {'clip': ('C0', '-'), 'no_clip_tis': ('C1', '-'), 'tis': ('C1', '-'),
           'jackpot': ('C2', '-'), 'expected': ('C2', '--'),
           'none': ('C0', '-')}
  found = gains(results)
  lines = {f'{LABELS[arm]}, {title}': (f'C{i}', line)
           for i, title in enumerate(TITLES.values())
           for arm, line in (('jackpot', '-'), ('expected', '--'))}
  tables.draw(path, [
      *(tables.Panel(by_rate(results, task), 'times', 'pass@1', (
          "rate, times the config's", 'held-out pass@1'), title, looks,
                     {'xscale': 'log'}) for task, title in TITLES.items()),
      tables.Panel(found, 'z_std', 'gain', (
          'standard deviation of Z', 'pass@1 minus that of TIS'),
                   'all rates', lines)],
              {**LABELS, **{name: name for name in lines}})


CLAIM = runs.Claim(
    'jackpot_rates', __doc__, 'Jackpot by learning rate', CONFIG,
    ('task', 'arm', 'times'), ARMS, SEEDS, measure, last, about,
    summary, sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
