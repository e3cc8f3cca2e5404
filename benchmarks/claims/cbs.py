"""CBS's claims on a small task: which rollouts to train on.

  python -m benchmarks.claims.cbs --write

Trains configs/cbs/countdown.py with GRPO: on all responses, on those that the
bandit picks, on those that rules pick, and on those that an oracle of gradients
picks, from a buffer of two batches and within a batch or groups (CBS*); and
without parts of the bandit's reward. All have the same number of sampled
responses, but for the oracle's probes.
"""

import contextlib
import pathlib
import statistics
from typing import Any, Mapping, Sequence

from benchmarks.claims import oracle, runs, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import end
from jaxrl_llm import config as config_lib
from jaxrl_llm.selection.bandit import FEATURES

CONFIG = 'configs/cbs/countdown.py'
PICKED = 64  # rows of CBS*: 2 of the 8 of each of 32 groups
LABELS = {
    'all': 'all responses', 'filter': 'without zero advantages',
    'cbs': 'CBS', 'largest': 'largest |advantage|',
    'oracle': 'gradient score', 'newest': 'newest',
    'random': 'random, global', 'cbs_intra': 'CBS*',
    'largest_intra': 'largest |advantage| of each group',
    'random_intra': 'random, 64 of 256',
    'raw_gain': 'CBS, raw gain', 'no_entropy': 'CBS, no entropy penalty'}
_INTRA = {f'largest_advantage.{name}': value for name, value in (
    ('scope', 'intra_group'), ('keep', 0.3))}
ARMS = {f'grpo,{name}': arm for name, arm in {
    'all': Arm({'selection': 'all_rows'}, rate='grpo,all'),
    'filter': Arm({'selection': 'all_rows', 'drop_zero_advantage': True},
                  rate='grpo,all'),
    'random': Arm({'selection': 'random', 'random.rounds': 2},
                  rate='grpo,all'),
    'newest': Arm({'selection': 'newest', 'newest.rounds': 2},
                  rate='grpo,all'),
    'largest': Arm({'selection': 'largest_advantage'}, rate='grpo,all'),
    'oracle': Arm({'selection': 'largest_advantage'}, rate='grpo,all'),
    'cbs': Arm(rate='grpo,cbs'),
    'random_intra': Arm({'selection': 'random', 'random.rows': PICKED},
                        rate='grpo,all'),
    'largest_intra': Arm({'selection': 'largest_advantage', **_INTRA},
                         rate='grpo,all'),
    'cbs_intra': Arm(config=f'{CONFIG}:grpo_intra', rate='grpo,cbs_intra'),
    'raw_gain': Arm({'cbs.ablate': 'raw_gain'}, rate='grpo,cbs'),
    'no_entropy': Arm({'cbs.ablate': 'no_entropy'}, rate='grpo,cbs'),
}.items()}
AGAINST = [
    ('cbs', 'all'), ('cbs', 'largest'), ('cbs', 'filter'), ('cbs', 'random'),
    ('cbs', 'newest'), ('largest', 'all'), ('oracle', 'all'),
    ('oracle', 'largest'), ('oracle', 'cbs'), ('random', 'all'),
    ('cbs_intra', 'all'), ('cbs_intra', 'largest_intra'),
    ('cbs_intra', 'random_intra'), ('largest_intra', 'random_intra'),
    ('cbs', 'raw_gain'), ('cbs', 'no_entropy')]
BANDIT = {
    'gain': 'cbs/gain', 'entropy penalty': 'cbs/entropy_penalty',
    'loss': 'cbs/loss', **{x: f'cbs/correlation/{x}' for x in FEATURES}}


def measure(
    config: str, name: str, folder: pathlib.Path, fields: Mapping[str, Any],
) -> dict[str, Any]:
  """Trains an arm; see `runs.Claim`."""
  picking = contextlib.nullcontext()
  if ',oracle,' in name:
    picking = oracle.picking(config_lib.load(config, fields))
  with picking:
    rows = runs.train_arm(config, name, folder, fields)
  # A policy that collapses may never fill a batch after the first steps.
  updated = [row for row in rows[1 + tables.WARM:] if row['batch/rounds']] or (
      rows[1:])
  return {
      **tables.curves_of(rows),
      'seconds': {name: round(statistics.median(
          row[f'seconds/{name}'] for row in updated), 5)
          for name in ('step', 'sample', 'score', 'update', 'select')},
      **tables.means_of(rows[1:][len(rows[1:]) // 2:], (
          'response/entropy', 'batch/rows', 'batch/replayed', 'batch/age',
          'batch/usage', 'batch/staleness', 'update/clip_low',
          'update/clip_high', *BANDIT.values()))}


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  error = statistics.fmean(r['error'] for r in results)
  plain = tables.by_arm(results, ['all'])['all']
  start, start_8 = (tables.mean_and_error(map(tables.start(name), plain))
                    for name in ('pass@1', 'pass@8'))
  return f'''\
{CONFIG}: a model of 0.28 million parameters on Countdown, 120 steps of 32 \
prompts with 8 samples, mini-batches of 64 responses. pass@1 is measured on \
532 held-out problems and averaged over the last {tables.LAST} evaluations, \
each with a standard error of {error:.3f} within a run; before training it is \
{start}, and pass@8 {start_8}. "CBS" picks 256 of the 512 responses of the \
last two batches; "random, global" and "largest |advantage|" pick as many of \
them. "CBS*" picks 2 of the 8 responses to each prompt, and "random, 64 of \
256" as many of the whole batch: these take one update where the others take \
four. "Gradient score" scores the candidates of CBS by the inner product of \
their gradients with that of the mean reward of a probe batch, of as many \
samples again, which are not counted (benchmarks/claims/oracle.py); it is the \
best for one small step of SGD, not an upper bound. "replayed" is the share of \
rows of an earlier batch, "used before" the mean number of rounds that had \
trained on a row. Milliseconds are medians over steps on one core that other \
runs slow down. Columns of the bandit are means over the second half: both \
terms of its reward (Eq. 10), its loss, and the correlation of scores and \
features (Fig. 9).'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  said = [tables.compared(arms, LABELS, arm, other, end()) for arm, other in (
      ('cbs', 'all'), ('cbs', 'largest'), ('largest', 'all'),
      ('oracle', 'all'), ('cbs_intra', 'random_intra'))
      if {arm, other} <= arms.keys()]
  fall = '; '.join(f'{LABELS[arm]} ' + tables.difference(
      arms, arm, arm, end('pass@8'), tables.start('pass@8'))
                   for arm in ('cbs', 'all'))
  return (f'after equal numbers of rollouts with GRPO, held-out pass@1 is: '
          f'{"; ".join(said)}. From start to end, pass@8 changes by: {fall}.')


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables."""
  milliseconds = lambda name: (lambda r: r['seconds'][name] * 1e3, 1)
  arms = tables.by_arm(results, LABELS)
  return '\n\n'.join([
      '## GRPO', tables.table(arms, LABELS, {
          'pass@1 at the end': end(), 'pass@8 at the end': end('pass@8'),
          'pass@1, equal seconds': tables.at_equal(arms, 'elapsed'),
          **{title: (tables.mean_of(key), 2) for title, key in (
              ('entropy', 'response/entropy'),
              ('rows of a step', 'batch/rows'),
              ('replayed', 'batch/replayed'), ('used before', 'batch/usage'))},
          **{f'{part}, ms': milliseconds(part)
             for part in ('update', 'score', 'select')}}),
      tables.differences(
          arms, LABELS, AGAINST, {'pass@1': end(), 'pass@8': end('pass@8')}),
      'The bandit:', tables.table(
          {arm: found for arm, found in arms.items()
           if 'cbs/gain' in found[0]}, LABELS, {
               title: (tables.mean_of(key), 2)
               for title, key in BANDIT.items()})])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 by samples and by seconds."""
  looks = {
      'all': ('0.5', '-'), 'cbs': ('C0', '-'), 'largest': ('C2', '-'),
      'random': ('C0', ':'), 'cbs_intra': ('C1', '-'),
      'largest_intra': ('C2', '--'), 'random_intra': ('C1', ':')}
  tables.draw(path, [
      tables.Panel(
          tables.by_arm(results, LABELS), x, 'pass@1',
          (text, 'held-out pass@1'), 'GRPO', looks)
      for x, text in (('samples', 'sampled responses'), ('elapsed', 'seconds'))
  ], LABELS)


CLAIM = runs.Claim(
    'cbs', __doc__, 'CBS: which rollouts to train on', CONFIG,
    ('objective', 'arm'), ARMS, range(10, 18), measure, end(), about, summary,
    sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
