"""PKPO on ARC-mini with a continuous reward: k=8 against k=1.

  python -m benchmarks.claims.pkpo_arc --write

Trains configs/pkpo/arc_mini.py, whose reward is the share of right cells, with
k=1 (leave-one-out), k=8, k=16=n, and k=1 with entropy bonuses, each of which
has a learning rate of its own; one more arm has k=1 with the rate of k=8, and
one samples from the warm start without training. All have the same steps and
numbers of samples.
"""

import collections
import math
import pathlib
import statistics
from typing import Any, Mapping, Sequence

from benchmarks.claims import runs, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import mean_of

CONFIG = 'configs/pkpo/arc_mini.py'
KS = 1, 8, 16
SAMPLES = 32  # responses to each held-out problem
LAST = 20  # last steps, over which reward and entropy are averaged
EVERY = 5  # a curve keeps one of this many steps
HARD = 0.5  # rules that fewer of their demonstrations apply are hard
BONUSES = '.03', '.1', '.3'

LABELS = {
    'frozen': 'not trained', '1': 'k=1', '8': 'k=8', '16': 'k=16=n',
    'equal': "k=1 with k=8's learning rate",
    **{f'bonus {bonus}': f'k=1, entropy bonus {bonus}' for bonus in BONUSES}}
FIGURES = {
    'solved so far': mean_of('solved'),
    'of the hard rules': mean_of('solved_hard'),
    **{f'pass@{k}': mean_of(f'pass@{k}') for k in KS},
    **{f'best of {k}': mean_of(f'best@{k}') for k in KS}}
# A learning rate of 0 keeps the warm start's parameters.
ARMS = {
    'frozen': Arm({runs.RATE: 0.0, 'pkpo.k': 16}),
    **{str(k): Arm({'pkpo.k': k}, rate=str(k)) for k in KS},
    'equal': Arm({'pkpo.k': 1}, rate='8'),
    **{f'bonus {bonus}': Arm(
        {'pkpo.k': 1, 'loss.entropy_bonus': float(bonus)},
        rate=f'bonus {bonus}') for bonus in BONUSES},
}


def best_of(rewards: Sequence[float], k: int) -> float:
  """Returns the mean of the largest of k rewards, over all subsets of k."""
  ranked = sorted(rewards)
  return sum(
      reward * math.comb(i, k - 1) for i, reward in enumerate(ranked)
  ) / math.comb(len(ranked), k)


def best_at(responses: Sequence[Mapping[str, Any]], k: int) -> float:
  """Returns the mean over problems of the largest of k rewards.

  Responses on which the verifier failed are left out, and so are problems with
  fewer than k others.
  """
  rewards = collections.defaultdict(list)
  for response in responses:
    if response['valid']:
      rewards[response['problem_id']].append(response['reward'])
  return statistics.fmean(
      best_of(row, k) for row in rewards.values() if len(row) >= k)


def measure(config: str, *arm: Any) -> dict[str, Any]:
  """Trains and evaluates an arm; see `runs.Claim`."""
  from jaxrl_llm import config as config_lib
  task = config_lib.load(config).task
  return measured(config, *arm, hard=[
      kind for kind, share in zip(task.kinds, task.solved) if share < HARD])


def measured(
    config: str, name: str, folder: pathlib.Path, fields: dict[str, Any],
    hard: Sequence[str], samples: int = SAMPLES) -> dict[str, Any]:
  """Trains and evaluates an arm, with hard kinds of problems."""
  from jaxrl_llm import config as config_lib
  fields = {**fields, 'eval.every': 0, 'eval.samples': 1, 'eval.k': 1}
  rows = runs.train_arm(config, name, folder, fields)[1:]
  found, responses = runs.evaluated(config, name, folder, {
      **fields, 'eval.samples': samples, 'eval.k': KS})
  loaded = config_lib.load(config, fields)
  mean = lambda metric: statistics.fmean(row[metric] for row in rows[-LAST:])
  numbers = {
      'solved': rows[-1]['solve_rate'],
      'solved_hard': statistics.fmean(
          rows[-1][f'solve_rate/{kind}'] for kind in hard),
      **{f'pass@{k}': found[f'pass@{k}'] for k in KS},
      **{f'best@{k}': best_at(responses, k) for k in KS},
      'reward': mean('reward/mean'), 'entropy': mean('response/entropy'),
      'minutes': sum(row['seconds/step'] for row in rows) / 60}
  return {
      'k': loaded.pkpo.k, 'steps': len(rows),
      **{key: round(value, 4) for key, value in numbers.items()},
      'curve': [round(row['solve_rate'], 4) for row in rows[EVERY - 1::EVERY]]}


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  return f'''\
{CONFIG}: a model of 0.09 million parameters on puzzles of a dozen rules, \
reward the share of right cells, 16 samples a prompt, {results[0]["steps"]} \
steps of 16 prompts. All arms have the same steps, warm start and numbers of \
samples; k=1 is leave-one-out. Learning rates were chosen for the share of \
problems solved so far, so that k=1 has the lowest, at which this share is no \
higher than without training; one more arm of k=1 has the rate of k=8. The \
best bonus is the one with the largest mean over these seeds: this favours it. \
"Solved so far" is the share of training problems with a right sample in some \
step, "of the hard rules" that of rules that few demonstrations of the warm \
start apply. pass@k (all cells right) and best of k (mean of the largest \
reward) are unbiased, from {SAMPLES} samples of each held-out problem. "Not \
trained" samples from the warm start as often as the others do in training. \
The paper (Tables 5 and 6, ARC-AGI-1, Gemma2-9B and Llama3.1-8B) reports 12% \
and 22% solved with k=1, 84% and 89% with k=8.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  bonus = tables.best(arms, 'bonus', mean_of('solved'))
  said = [tables.compared(arms, LABELS, '8', other, mean_of('solved'))
          for other in ('equal', '1', bonus, '16', 'frozen')]
  heldout = [tables.compared(arms, LABELS, '8', other, mean_of('pass@8'))
             for other in ('equal', '1')]
  return ('the share of training problems solved at least once is: '
          f'{"; ".join(said)}. Held-out pass@8: {"; ".join(heldout)}.')


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables."""
  arms = tables.by_arm(results, LABELS)
  more = {'reward in training': mean_of('reward'),
          'entropy': mean_of('entropy'), 'minutes': mean_of('minutes')}
  return '\n\n'.join([
      tables.table(arms, LABELS, {**FIGURES, **more}),
      tables.differences(
          arms, LABELS, [('8', arm) for arm in arms if arm != '8'], FIGURES)])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws the cumulative solve rate by step, pass@k and best of k by k."""
  looks = {
      'frozen': ('black', ':'), '1': ('#8ab6d6', '-'), '8': ('#1f5f99', '-'),
      '16': ('#0b2540', '-'), 'equal': ('#8ab6d6', '--'), **{
          f'bonus {bonus}': ('#d1495b', line)
          for bonus, line in zip(BONUSES, (':', '--', '-'))}}
  found = [{**r, 'ks': KS, **{
      name: [r[f'{name}@{k}'] for k in KS] for name in ('pass', 'best')}}
           for r in results]
  arms = tables.by_arm(found, LABELS)
  tables.draw(path, [
      tables.Panel(arms, EVERY, 'curve', ('step', 'solved so far'), '', looks),
      *(tables.Panel(arms, 'ks', name, ('k', text), '', looks,
                     {'xscale': 'log'})
        for name, text in (
            ('pass', 'held-out pass@k'), ('best', 'held-out best of k')))],
              LABELS)


CLAIM = runs.Claim(
    'pkpo_arc', __doc__, 'PKPO with a continuous reward: ARC-mini', CONFIG,
    ('arm',), ARMS, range(10, 18), measure, mean_of('solved'), about, summary,
    sections, draw, chosen_by='the share of training problems solved so far')

if __name__ == '__main__':
  runs.program(CLAIM)
