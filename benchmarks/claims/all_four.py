"""All four methods in one run, and the run with each of them left out.

  python -m benchmarks.claims.all_four --write

Trains configs/all_four.py, then without SPEED, PKPO, CBS or Jackpot, and
without any of them. Responses are written by 8-bit weights and used one step
later in all of these; a last arm has no method, full precision and no lag. All
have about the same number of sampled responses.
"""

import pathlib
import statistics
from typing import Any, Sequence

from benchmarks.claims import runs, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import end, mean_of

CONFIG = 'configs/all_four.py'
LABELS = {
    'all_four': 'all four', 'no_speed': 'without SPEED',
    'no_pkpo': 'without PKPO (GRPO)', 'no_cbs': 'without CBS',
    'no_jackpot': 'without Jackpot', 'none': 'none of the four',
    'none_fresh': 'none, full precision, no lag'}
MEANS = {
    'entropy': 'response/entropy', 'staleness, updates': 'batch/staleness',
    'replayed': 'batch/replayed',
    'gap to the behaviour, nats': 'update/behaviour_gap',
    'kept by OBRS': 'update/obrs_kept', 's per step': 'seconds/step'}
FIGURES = {'pass@1': end(), 'pass@8': end('pass@8')}

FEW = range(20, 28)  # seeds of the arms that leave one method out
# Without SPEED a step samples 256 responses, with it about twice as many.
_SPEED = {'curriculum': 'uniform', 'curriculum_prompts': None, 'steps': 188,
          'eval.every': 10}
_PKPO = {'advantage': 'grpo'}
_CBS = {'selection': 'all_rows'}
_JACKPOT = {'off_policy': 'none'}
_NONE = {**_SPEED, **_PKPO, **_CBS, **_JACKPOT}
ARMS = {
    'all_four': Arm({}, rate='all_four'),
    'no_speed': Arm({**_SPEED, 'pkpo.k': '0:4,56:2,113:1'}, rate='all_four',
                    seeds=FEW),
    'no_pkpo': Arm(_PKPO, rate='all_four', seeds=FEW),
    'no_cbs': Arm(_CBS, rate='all_four', seeds=FEW),
    'no_jackpot': Arm(_JACKPOT, rate='all_four', seeds=FEW),
    'none': Arm(_NONE, rate='none'),
    'none_fresh': Arm({**_NONE, 'actor.lag': 0, 'sampling.weights': None},
                      rate='none', seeds=FEW),
}


def measure(*arm: Any) -> dict[str, Any]:
  """Trains an arm; see `runs.Claim`."""
  rows = runs.train_arm(*arm)
  return {**tables.curves_of(rows), **tables.means_of(
      rows[1:], MEANS.values())}


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  whole = tables.by_arm(results, LABELS)['all_four']
  start, start_8 = (tables.mean_and_error(map(tables.start(name), whole))
                    for name in FIGURES)
  return f'''\
{CONFIG}: a model of 0.28 million parameters on Countdown. SPEED screens 64 \
prompts a step, PKPO's k falls from 4 to 1, CBS picks 256 responses of the \
last two batches, Jackpot corrects for a policy with 8-bit weights that is a \
step old. Each arm leaves one method out, with about the same number of \
samples. "gap" is the mean difference of a token's log-probs under the trainer \
and the sampler. pass@1 and pass@8 are measured on 224 held-out problems with \
8 samples each and averaged over the last {tables.LAST} evaluations, each with \
a standard error of {statistics.fmean(r["error"] for r in results):.3f} within \
a run. Before training they are {start} and {start_8}.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  out = [f'{LABELS[arm]} {tables.difference(arms, arm, "all_four", end())}'
         for arm in arms if arm.startswith('no_')]
  ends = '; '.join(f'{name}: ' + tables.compared(
      arms, LABELS, 'all_four', 'none', figure)
                   for name, figure in FIGURES.items())
  fall = tables.difference(
      arms, 'all_four', 'all_four', end('pass@8'), tables.start('pass@8'))
  times = lambda arm, spent: tables.ratio([
      other / ours for ours, other in tables.pairs(
          arms, 'all_four', arm, lambda result: result[spent][-1])])
  both = {arm: arms[arm] for arm in ('all_four', 'none')}
  equal = '; '.join(f'{name} {tables.difference(both, *both, at)}'
                    for name in FIGURES
                    for at in [tables.at_equal(both, 'gflops', name)])
  return (
      f'held-out {ends}. None of the four takes so many times as much as all '
      f'four: GFLOP {times("none", "gflops")}, seconds '
      f'{times("none", "elapsed")}; without SPEED alone: GFLOP '
      f'{times("no_speed", "gflops")}. After equal GFLOP, all four minus none '
      f'is: {equal}. From start to end, pass@8 of all four changes by {fall}. '
      f'Over {len(FEW)} of the seeds, leaving a method out changes pass@1 by: '
      f'{"; ".join(out)}.')


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables of the arms."""
  arms = tables.by_arm(results, LABELS)
  return '\n\n'.join([
      tables.table(arms, LABELS, {
          **FIGURES, **{f'{name}, equal {title}': tables.at_equal(
              arms, spent, name) for name in FIGURES for title, spent in (
                  ('samples', 'samples'), ('seconds', 'elapsed'))},
          **{f'{name}, equal GFLOP': tables.at_equal(arms, 'gflops', name)
             for name in FIGURES},
          'samples': (lambda r: r['samples'][-1], 0),
          'updates': (lambda r: r['updates'][-1], 0),
          'GFLOP': (lambda r: r['gflops'][-1], 0),
          **{title: mean_of(name) for title, name in MEANS.items()}}),
      tables.differences(arms, LABELS, [
          (arm, other) for other in ('all_four', 'none') for arm in arms
          if arm != other], FIGURES)])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 and pass@8 by samples and by seconds."""
  arms = tables.by_arm(results, LABELS)
  looks = {arm: (f'C{i}', '-') for i, arm in enumerate(LABELS)}
  tables.draw(path, [
      tables.Panel(arms, x, name, (text, f'held-out {name}'), '', looks)
      for name in FIGURES for x, text in (
          ('samples', 'sampled responses'), ('elapsed', 'seconds'))], LABELS)


CLAIM = runs.Claim(
    'all_four', __doc__, 'All four methods in one run', CONFIG, ('arm',), ARMS,
    range(20, 36), measure, end(), about, summary, sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
