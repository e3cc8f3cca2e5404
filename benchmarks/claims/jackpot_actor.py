"""Jackpot's claims on a small task: other models write the responses.

  python -m benchmarks.claims.jackpot_actor --write

Trains configs/jackpot/countdown_actor.py: a policy whose responses a model of a
quarter of its size writes, without a correction, with others and with Jackpot;
and the policy alone, with samples of its own, exact ones and those of weights
and a KV cache in float8. All have the same number of updates.
"""

import pathlib
import statistics
from typing import Any, Sequence

from benchmarks.claims import runs, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import mean_of
from benchmarks.rl_step import markdown

CONFIG = 'configs/jackpot/countdown_actor.py'
PART = 8  # updates that a point of a curve is a mean of

LABELS = {
    'on_policy': 'on-policy, no actor',
    'jackpot': 'Jackpot',
    'none': 'no correction',
    'tis': 'TIS',
    'distill': 'no correction, distillation alone',
    'frozen_none': 'no correction, frozen actor',
    'frozen_tis': 'TIS, frozen actor',
    'frozen_jackpot': 'Jackpot, frozen actor',
    'float8_none': 'no correction, float8',
    'float8_tis': 'TIS, float8',
    'float8_mask': 'mask alone, float8',
    'float8_jackpot': 'Jackpot, float8',
}
CURVES = {
    'reward/mean': 'reward', 'update/actor_kl': 'actor_kl',
    'update/behaviour_gap': 'gap', 'update/obrs_acceptance': 'acceptance',
    'update/obrs_kl_before': 'kl_before', 'update/obrs_kl_after': 'kl_after',
    'update/obrs_z_std': 'z_std'}
_NONE = {'off_policy': 'none'}
_TIS = {**_NONE, 'loss.importance': 'tis'}
_FROZEN = {
    'actor.ppo': False, 'actor.distill': 0.0, 'actor.learning_rate': None}
_ALONE = {'actor.model.preset': None}
_FLOAT8 = {**_ALONE, 'sampling.weights': 'float8', 'sampling.kv': 'float8'}
ARMS = {
    'on_policy': Arm({**_ALONE, **_NONE}, rate='on_policy'),
    'jackpot': Arm({}, rate='jackpot'),
    'none': Arm(_NONE, rate='none'),
    'tis': Arm(_TIS, rate='tis'),
    'distill': Arm({**_NONE, 'actor.ppo': False}, rate='none'),
    'frozen_none': Arm({**_FROZEN, **_NONE}, rate='none'),
    'frozen_tis': Arm({**_FROZEN, **_TIS}, rate='tis'),
    'frozen_jackpot': Arm(_FROZEN, rate='jackpot'),
    'float8_none': Arm({**_FLOAT8, **_NONE}, rate='on_policy'),
    'float8_tis': Arm({**_FLOAT8, **_TIS}, rate='on_policy'),
    'float8_mask': Arm({**_FLOAT8, 'jackpot.weight': False}, rate='on_policy'),
    'float8_jackpot': Arm(_FLOAT8, rate='on_policy'),
}
AGAINST = [
    ('jackpot', 'tis'), ('jackpot', 'none'), ('tis', 'none'),
    ('jackpot', 'distill'), ('jackpot', 'frozen_jackpot'),
    ('frozen_jackpot', 'frozen_tis'), ('frozen_jackpot', 'frozen_none'),
    ('jackpot', 'on_policy'), ('float8_none', 'on_policy'),
    ('float8_tis', 'float8_none'), ('float8_mask', 'float8_none'),
    ('float8_jackpot', 'float8_none'), ('float8_jackpot', 'float8_tis')]


def measure(*arm: Any) -> dict[str, Any]:
  """Trains an arm; see `runs.Claim`."""
  rows = runs.train_arm(*arm)
  return {**tables.curves_of(rows), **tables.parts_of(rows, CURVES, PART)}


def last(result: tables.Result) -> float:
  """Returns the last pass@1; the few evaluations are not averaged."""
  return result['pass@1'][-1]


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  start = tables.mean_and_error(
      map(tables.start(), tables.by_arm(results, LABELS)['on_policy']))
  return f'''\
{CONFIG}: a policy of 0.28 million parameters on Countdown, 384 updates of 256 \
responses, GRPO without entropy bonus, after a warm-up of 32 updates. The \
actor has a width of 64 and 2 layers, and learns by PPO and distillation \
unless an arm says otherwise; "float8" is the policy itself, with weights and \
KV cache in float8. pass@1 is measured on 532 held-out \
problems with the policy, not quantised; its standard error is \
{statistics.fmean(r["error"] for r in results):.3f} in each run, and before \
training it is {start}. The reward is of the responses that are trained on. \
The log-prob error is the mean of |log p_ref - log p_inf| over tokens; \
KL(policy, actor) is the distillation loss; the last two columns are KL(p_inf \
|| p_new) before and after rejection. These columns are means over the run.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  said = [tables.compared(arms, LABELS, arm, other, last) for arm, other in (
      ('jackpot', 'tis'), ('jackpot', 'none'), ('jackpot', 'on_policy'),
      ('frozen_jackpot', 'frozen_tis'), ('float8_jackpot', 'float8_none'))]
  return f'held-out pass@1 is: {"; ".join(said)}.'


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables of all arms."""
  arms = tables.by_arm(results, LABELS)
  columns = {title: (mean_of(name), digits) for title, name, digits in (
      ('log-prob error', 'gap', 4), ('acceptance', 'acceptance', 3),
      ('KL(policy, actor)', 'actor_kl', 3), ('KL before', 'kl_before', 3),
      ('KL after', 'kl_after', 3))}
  return '\n\n'.join([
      tables.table(arms, LABELS, {
          'pass@1 at the end': last,
          'pass@1, equal seconds': tables.at_equal(arms, 'elapsed'),
          'highest': lambda r: max(r['pass@1']),
          'reward at the end': lambda r: r['reward'][-1], **columns}),
      tables.differences(arms, LABELS, [
          pair for pair in AGAINST if {*pair} <= arms.keys()],
          {'pass@1': last}),
      markdown(['', 'pass@1, end minus start'], [
          [LABELS[arm], tables.difference(arms, arm, arm, last, tables.start())]
          for arm in arms])])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 by updates and by seconds, and the distance of the actor."""
  small = {
      'on_policy': ('0.5', ':'), 'none': ('C3', '-'), 'tis': ('C1', '-'),
      'distill': ('C4', '--'), 'jackpot': ('C2', '-'),
      'frozen_none': ('C3', ':'), 'frozen_tis': ('C1', ':'),
      'frozen_jackpot': ('C2', ':')}
  eighth = {
      'on_policy': ('0.5', ':'), 'float8_none': ('C3', '-'),
      'float8_tis': ('C1', '-'), 'float8_jackpot': ('C2', '-')}
  arms = tables.by_arm(results, LABELS)
  score = 'held-out pass@1'
  tables.draw(path, [
      tables.Panel(arms, 'updates', 'pass@1', ('updates', score),
                   'A smaller actor', small),
      tables.Panel(arms, 'updates', 'pass@1', ('updates', score),
                   'float8 sampling', eighth),
      tables.Panel(arms, PART, 'actor_kl', (
          'updates', 'KL(policy || actor), nats'), 'Distance of the actor',
                   small, {'yscale': 'log'}),
      tables.Panel(arms, 'elapsed', 'pass@1', ('seconds', score),
                   'A smaller actor', small)], LABELS)


CLAIM = runs.Claim(
    'jackpot_actor', __doc__, 'Jackpot: another model writes the responses',
    CONFIG, ('arm',), ARMS, range(10, 15), measure, last, about, summary,
    sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
