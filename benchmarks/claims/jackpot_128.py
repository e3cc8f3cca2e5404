"""Jackpot on two batches of 128 updates on a small task, with more seeds.

  python -m benchmarks.claims.jackpot_128 --write

Trains configs/jackpot/countdown.py with 128 updates on the rollouts of one
policy: clipped (PPO), without a clip by truncated importance sampling with
Jackpot's cap, and with Jackpot, whose mask is sampled or its expectation. Each
arm has a learning rate of its own. See `benchmarks.claims.jackpot`, which has
more arms, with fewer seeds.
"""

import pathlib
from typing import Sequence

from benchmarks.claims import jackpot, runs, tables
from benchmarks.claims.jackpot import CONFIG, last
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import mean_of

UPDATES = 128  # on the rollouts of one policy
LABELS = {
    'clip': 'clip (PPO)', 'no_clip_tis': 'no-clip TIS', 'jackpot': 'Jackpot',
    'expected': 'Jackpot, expected mask'}
# Without a clip the weight is min(p_new / p_old, 3), and 3 is Jackpot's c1.
FIELDS = {
    'clip': jackpot.FIELDS['clip'][0],
    'no_clip_tis': {**jackpot.FIELDS['no_clip_tis'][0], 'loss.clip_high': 2.0},
    'jackpot': {},
    'expected': {'jackpot.mask': 'expected'}}
ARMS = {arm: Arm({**jackpot.of_stale(UPDATES), **FIELDS[arm]}, rate=arm)
        for arm in LABELS}
AGAINST = [
    ('jackpot', 'clip'), ('no_clip_tis', 'clip'), ('jackpot', 'no_clip_tis'),
    ('expected', 'jackpot')]


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  return f'''\
{CONFIG}: a model of 0.28 million parameters on Countdown, \
{jackpot.UPDATES} updates of {jackpot.ROWS} responses, {UPDATES} on the \
rollouts of one policy, after a warm-up of 32 updates. Only "clip" clips. \
No-clip TIS weights by min(p_new / p_old, 3), which is the cap of Jackpot's \
weights. pass@1 is measured on 532 held-out problems at the end; before \
training it is {tables.before(results)}. KL is of the behaviour to the policy \
in training, before and after rejection, acceptance and the share of weights \
at c1 are of all tokens: means over the run.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  arms = tables.by_arm(results, LABELS)
  said = '; '.join(tables.compared(arms, LABELS, *pair, last)
                   for pair in AGAINST)
  return (f'after {jackpot.UPDATES // UPDATES} batches of {UPDATES} updates on '
          'the rollouts of one policy, with a rate tuned for each arm, '
          f'held-out pass@1 is: {said}.')


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables of the arms."""
  arms = tables.by_arm(results, LABELS)
  return '\n\n'.join([
      tables.table(arms, LABELS, {
          'pass@1 at the end': last,
          'highest': lambda r: max(r['pass@1']),
          'collapsed': (lambda r: jackpot.collapse(r) is not None, 2),
          **{title: mean_of(name) for title, name in (
              ('entropy', 'entropy'), ('acceptance', 'acceptance'),
              ('KL before', 'kl_before'), ('KL after', 'kl_after'),
              ('at c1', 'at_c1'))}}),
      tables.differences(arms, LABELS, [
          *AGAINST, ('expected', 'clip'), ('expected', 'no_clip_tis')],
                         {'pass@1': last}),
      tables.markdown(['pass@1', 'above its start'], [
          [LABELS[arm], tables.difference(
              arms, arm, arm, last, tables.start())] for arm in arms])])


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 by updates, and KL."""
  arms = tables.by_arm(results, LABELS)
  looks = {'clip': ('C0', '-'), 'no_clip_tis': ('C1', '-'),
           'jackpot': ('C2', '-'), 'expected': ('C2', '--')}
  tables.draw(path, [
      tables.Panel(arms, x, y, ('updates', name), '', looks, more)
      for x, y, name, more in (
          ('updates', 'pass@1', 'held-out pass@1', {}),
          (jackpot.PART, 'kl_before', 'KL(behaviour || policy), nats',
           {'yscale': 'log'}))], LABELS)


CLAIM = runs.Claim(
    'jackpot_128', __doc__, 'Jackpot after 128 updates, with more seeds',
    CONFIG, ('arm',), ARMS, range(15, 27), jackpot.measure, last, about,
    summary, sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
