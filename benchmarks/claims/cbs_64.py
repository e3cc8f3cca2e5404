"""CBS against all responses and against rules, with 64 seeds.

  python -m benchmarks.claims.cbs_64 --write

Trains configs/cbs/countdown.py: with GRPO on 64 seeds on all responses and on
those that CBS picks; on half of these seeds on those with an advantage, on
those with the largest, and on those that CBS picks without its entropy penalty;
with DAPO and GSPO, whose settings are those of the config, on the first 12.
`benchmarks.claims.cbs` has more arms, with fewer seeds. By its paired
deviations, the comparison of CBS with all responses detects 3.1% of the base
with probability .8, and those with rules 3.3 to 5.8%; corrected for their
number 3.8%, and 4.2 to 7.2%. Its runs chose the learning rate of GRPO, the
same for all responses and for CBS; those of DAPO and GSPO are chosen here.
"""

import pathlib
import statistics
from typing import Sequence

from benchmarks.claims import cbs, runs, tables
from benchmarks.claims.cbs import CONFIG
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import end

LABELS = {name: cbs.LABELS[name] for name in (
    'all', 'filter', 'largest', 'cbs', 'no_entropy')}
TITLES = {'grpo': 'GRPO', 'dapo': 'DAPO', 'gspo': 'GSPO'}
SEEDS = range(18, 82)
HALF = 'filter', 'largest', 'no_entropy'  # arms with half of the seeds
FEW = 12  # seeds of DAPO and GSPO
AGAINST = [('cbs', 'all'), ('cbs', 'largest'), ('cbs', 'filter'),
           ('largest', 'all'), ('no_entropy', 'largest')]


def _arms() -> dict[str, Arm]:
  """Makes the arms of each objective."""
  made = {}
  for arm in LABELS:
    fields = cbs.ARMS[f'grpo,{arm}'].fields
    made[f'grpo,{arm}'] = Arm(
        fields, seeds=SEEDS[:len(SEEDS) // 2] if arm in HALF else SEEDS)
    if arm in ('all', 'largest', 'cbs'):
      made.update({
          f'{objective},{arm}': Arm(
              fields, f'{CONFIG}:{objective}',
              f'{objective},{"cbs" if arm == "cbs" else "all"}', SEEDS[:FEW])
          for objective in ('dapo', 'gspo')})
  return made


ARMS = _arms()


def by_objective(
    results: Sequence[tables.Result],
) -> dict[str, dict[str, list[tables.Result]]]:
  """Groups the results by objective and arm."""
  found = {objective: tables.by_arm(results, LABELS, objective=objective)
           for objective in TITLES}
  return {objective: arms for objective, arms in found.items() if arms}


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  error = statistics.fmean(r['error'] for r in results)
  return f'''\
{CONFIG}: a model of 0.28 million parameters on Countdown, 120 steps of 32 \
prompts with 8 samples, mini-batches of 64 responses. "CBS" and "largest \
|advantage|" pick 256 of the 512 responses of the last two batches. GRPO has \
the rate of the config, which [the claim with more arms](cbs.md) chose for all \
responses and for CBS. DAPO and GSPO have {FEW} of the seeds. pass@1 is \
measured on 532 held-out problems and averaged over the last \
{tables.LAST} evaluations, each with a standard error of {error:.3f} within a \
run; before training it is {tables.before(results)}.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = by_objective(results)['grpo']
  said = '; '.join(
      tables.compared(arms, LABELS, *pair, end()) for pair in AGAINST)
  return ('after equal numbers of rollouts with GRPO, held-out pass@1 is: '
          f'{said}.')


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables of each objective."""
  parts = []
  for objective, arms in by_objective(results).items():
    pairs = [(arm, other) for arm in arms for other in arms
             if [*arms].index(arm) > [*arms].index(other)]
    parts += [
        f'## {TITLES[objective]}', tables.table(arms, LABELS, {
            'pass@1 at the end': end(), 'pass@8 at the end': end('pass@8'),
            **{title: (tables.mean_of(key), 2) for title, key in (
                ('entropy', 'response/entropy'),
                ('rows of a step', 'batch/rows'),
                ('replayed', 'batch/replayed'))}}),
        tables.differences(arms, LABELS, pairs, {
            'pass@1': end(), 'pass@8': end('pass@8')})]
  return '\n\n'.join(parts)


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 by samples, for each objective."""
  looks = {'all': ('0.5', '-'), 'filter': ('0.5', '--'), 'largest': ('C2', '-'),
           'cbs': ('C0', '-'), 'no_entropy': ('C0', '--')}
  tables.draw(path, [
      tables.Panel(arms, 'samples', 'pass@1', (
          'sampled responses', 'held-out pass@1'), TITLES[objective], looks)
      for objective, arms in by_objective(results).items()], LABELS)


CLAIM = runs.Claim(
    'cbs_64', __doc__, 'CBS against rules, with more seeds', CONFIG,
    ('objective', 'arm'), ARMS, SEEDS, cbs.measure, end(), about, summary,
    sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
