"""The methods on a real language model: SmolLM2-135M-Instruct on arithmetic.

  python -m benchmarks.claims.real --write

Trains configs/real/smollm2.py, GRPO, and the same with PKPO (k=4 of 8), SPEED,
or Jackpot (rollouts of 8-bit weights, one step old), from the weights of the
model, with about the same number of samples. The settings are those of the
config, chosen on other seeds. `--report` writes what is there.
"""

import collections
import math
import pathlib
import statistics
from typing import Any, Sequence

import numpy as np

from benchmarks.claims import runs, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import mean_of

CONFIG = 'configs/real/smollm2.py'
SAMPLES = 8  # responses to each held-out problem
KS = 1, 8
LAST = 10  # last steps, over which reward and entropy are averaged

LABELS = {
    'start': 'not trained', 'grpo': 'GRPO', 'pkpo': 'PKPO, k=4',
    'speed': 'SPEED, n_init=4', 'jackpot': 'Jackpot, int8, lag 1'}
ARMS = {
    'start': Arm(),  # the model as it is
    'grpo': Arm(),
    'pkpo': Arm({'advantage': 'pkpo', 'pkpo.k': 4}),
    'speed': Arm({'curriculum': 'speed', 'curriculum_prompts': 24,
                  'speed.n_init': 4}),
    'jackpot': Arm({'off_policy': 'jackpot', 'sampling.weights': 'int8',
                    'actor.lag': 1}),
}


def pass_at(k: int) -> Any:
  """Returns the function for the unbiased pass@k of each held-out problem."""
  return lambda result: np.array([
      1 - math.comb(SAMPLES - count, k) / math.comb(SAMPLES, k)
      for count in result['right']])


def measure(
    config: str, name: str, folder: pathlib.Path, fields: dict[str, Any],
) -> dict[str, Any]:
  """Trains and evaluates an arm; see `runs.Claim`."""
  # A run takes half an hour or more: after an interrupt it goes on.
  fields = {**fields, 'eval.every': 0, 'eval.samples': 1, 'eval.k': 1,
            'checkpoint.every': 20}
  trains = not name.startswith('start')
  rows = runs.train_arm(config, name, folder, fields)[1:] if trains else []
  _, responses = runs.evaluated(
      config, name, folder, {
          **fields, 'eval.samples': SAMPLES, 'eval.k': KS},
      'last' if rows else 'start')
  right = collections.Counter()
  for response in responses:
    right[response['problem_id']] += round(response['reward'])
  found = {'right': [right[i] for i in sorted(right)]}
  found |= {f'pass@{k}': round(pass_at(k)(found).mean(), 4) for k in KS}
  if not rows:
    return found
  last = lambda metric: round(statistics.fmean(
      row[metric] for row in rows[-LAST:]), 4)
  return {
      **found, 'reward': last('reward/mean'),
      'entropy': last('response/entropy'),
      'samples': sum(row['response/count'] for row in rows),
      'minutes': sum(row['seconds/step'] for row in rows) / 60,
      'generation': round(
          sum(row['seconds/sample'] for row in rows[tables.WARM:])
          / sum(row['seconds/step'] for row in rows[tables.WARM:]), 4),
      'curve': [round(row['reward/mean'], 4) for row in rows]}


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  return f'''\
{CONFIG}: SmolLM2-135M-Instruct learns arithmetic from its own weights. All \
arms have the config's settings, which were chosen for GRPO on other seeds, \
and about the same number of samples. pass@k is unbiased, from {SAMPLES} \
samples of each of {len(results[0]["right"])} held-out problems in other \
wordings. Differences have two intervals, over seeds and over problems \
(bootstrap of {tables.DRAWS:,} draws of the means over seeds), and are \
distinguishable if both leave out 0. There is no arm of 8-bit rollouts a step \
old without Jackpot, so its arm shows all three. Runs shared the machine with \
other work, which their minutes and shares of generation measure too.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  said = [tables.compared(arms, LABELS, arm, other, mean_of('pass@1'))
          for arm, other in (('grpo', 'start'), ('pkpo', 'grpo'),
                             ('speed', 'grpo'), ('jackpot', 'grpo'))
          if len(arms.get(arm, ())) == len(arms['grpo'])]
  pkpo = tables.compared(arms, LABELS, 'pkpo', 'grpo', mean_of('pass@8'))
  return f'held-out pass@1 is: {"; ".join(said)}. pass@8: {pkpo}.'


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables; arms without a result are "not run"."""
  arms = tables.by_arm(results, LABELS)
  pairs = [('grpo', 'start')] + [
      (arm, 'grpo') for arm in LABELS if arm not in ('start', 'grpo')]
  figures = [f'pass@{k}' for k in KS]
  missing = [LABELS[arm] for arm in LABELS if arm not in arms]
  return '\n\n'.join([
      tables.table(arms, LABELS, {
          **{name: mean_of(name) for name in (
              *figures, 'reward', 'entropy')},
          **{name: (mean_of(name), 0) for name in ('samples', 'minutes')},
          'share of generation': (mean_of('generation'), 2)}),
      tables.markdown(['', *figures], [
          [f'{LABELS[arm]} minus {LABELS[other]}', *(tables.difference(
              arms, arm, other, mean_of(f'pass@{k}'), problems=pass_at(k))
              for k in KS)] for arm, other in pairs]),
      *([f'Not run: {"; ".join(missing)}.'] if missing else [])])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws the reward of the rollouts by step, smoothed over LAST steps."""
  found = [{**r, 'smooth': np.convolve(
      r['curve'], np.ones(LAST) / LAST, 'valid').tolist()}
           for r in results if r.get('curve')]
  tables.draw(path, [tables.Panel(
      tables.by_arm(found, LABELS), 1, 'smooth',
      ('step', 'reward of the rollouts'), '',
      {arm: (f'C{i}', '-') for i, arm in enumerate(LABELS)})], LABELS)


CLAIM = runs.Claim(
    'real', __doc__, 'The methods on a real language model', CONFIG, ('arm',),
    ARMS, range(10, 13), measure, mean_of('pass@1'), about, summary, sections,
    draw)

if __name__ == '__main__':
  runs.program(CLAIM)
