"""Jackpot's claims on a small task: learning from stale rollouts.

  python -m benchmarks.claims.jackpot --write

Trains configs/jackpot/countdown.py with 32 and with 128 updates on the rollouts
of one policy: with the corrections that the paper compares, with Jackpot, and
with parts of it; and once on-policy. All have the same number of updates.
"""

import pathlib
import statistics
from typing import Any, Sequence

from benchmarks.claims import runs, tables
from benchmarks.claims.runs import Arm
from benchmarks.claims.tables import mean_of

CONFIG = 'configs/jackpot/countdown.py'
UPDATES = 256  # optimiser steps of a run
ROWS = 256  # responses of an optimiser step
EVERY = 32  # updates between two evaluations, or more
PART = 8  # updates that a point of a curve is a mean of
COLLAPSE = 0.5  # of the pass@1 before training

LABELS = {
    'on_policy': 'on-policy',
    'clip': 'clip (PPO)',
    'tis': 'clip and TIS',
    'no_clip_tis': 'no-clip TIS',
    'jackpot': 'Jackpot',
    'jackpot_clip': 'Jackpot with clip',
    'mask': 'mask alone',
    'weights': 'weights alone',
}
CURVES = {
    'obrs_kl_before': 'kl_before', 'obrs_kl_after': 'kl_after',
    'obrs_acceptance': 'acceptance', 'obrs_kappa': 'kappa',
    'obrs_at_c1': 'at_c1', 'obrs_z_std': 'z_std',
    'obrs_rejected_positive': 'rejected_positive',
    'obrs_rejected_negative': 'rejected_negative'}
_NONE = {'off_policy': 'none'}
# Fields of each arm, and the arm whose learning rate it has: the baseline's,
# the method's, or its own where runs collapse.
FIELDS = {
    'clip': ({**_NONE, 'loss.objective': 'clip'}, 'clip'),
    'tis': ({**_NONE, 'loss.objective': 'clip', 'loss.importance': 'tis'},
            'clip'),
    # The gradient of min(p_new / p_old, 2) log p_new.
    'no_clip_tis': ({**_NONE, 'loss.objective': 'cispo', 'loss.clip_low': 1.0,
                     'loss.clip_high': 1.0}, 'no_clip_tis'),
    'jackpot': ({}, 'jackpot'),
    'jackpot_clip': ({'loss.objective': 'clip'}, 'clip'),
    'mask': ({'jackpot.weight': False}, 'mask'),
    'weights': ({'jackpot.mask': 'none'}, 'jackpot'),
}
AGAINST = [
    ('jackpot', 'clip'), ('no_clip_tis', 'clip'), ('jackpot', 'no_clip_tis'),
    ('jackpot', 'tis'), ('jackpot_clip', 'clip'),
    ('jackpot_clip', 'no_clip_tis'), ('jackpot_clip', 'tis'),
    ('jackpot', 'mask'), ('jackpot', 'weights'), ('jackpot', 'jackpot_clip'),
    ('clip', 'on_policy')]


def of_stale(stale: int, updates: int = UPDATES) -> dict[str, Any]:
  """Returns the fields of a staleness, in updates per rollout batch."""
  return {
      'steps': updates // stale, 'learner.updates': stale,
      'prompts_per_step': ROWS * stale // 8, 'samples_per_prompt': 8,
      'eval.every': max(EVERY // stale, 1)}


ARMS = {
    'on_policy,1': Arm({**of_stale(1), **_NONE}, rate='clip,32'),
    **{f'{name},{stale}': Arm(
        {**of_stale(stale), **fields}, rate=f'{rate},{stale}')
       for stale in (32, 128) for name, (fields, rate) in FIELDS.items()}}


def measure(*arm: Any) -> dict[str, Any]:
  """Trains an arm; see `runs.Claim`."""
  from jaxrl_llm.loop import step
  updates, run = [], step.run_rounds

  def noted(*args, **kwargs):
    outcome = run(*args, **kwargs)
    updates.extend(outcome.metrics)
    return outcome

  step.run_rounds = noted  # metrics.jsonl has the means of a step's updates
  rows = runs.train_arm(*arm)
  curves = tables.curves_of(rows)
  # A round is many updates here.
  stale = len(updates) // (len(rows) - 1)
  return {
      **curves, 'updates': [count * stale for count in curves['updates']],
      'entropy': round(rows[-1]['response/entropy'], 4),
      **tables.parts_of(updates, CURVES, PART)}


def last(result: tables.Result) -> float:
  """Returns the last pass@1; the few evaluations are not averaged."""
  return result['pass@1'][-1]


def collapse(result: tables.Result) -> int | None:
  """Returns the updates at the first evaluation below half of the start."""
  return next((
      updates for updates, value in zip(result['updates'], result['pass@1'])
      if value < COLLAPSE * result['pass@1'][0]), None)


def by_stale(
    results: Sequence[tables.Result],
) -> dict[int, dict[str, list[tables.Result]]]:
  """Groups the results by staleness and arm, the on-policy ones in each."""
  alone = [r for r in results if r['stale'] == 1]
  return {
      stale: tables.by_arm(
          alone + [r for r in results if r['stale'] == stale], LABELS)
      for stale in sorted({r['stale'] for r in results} - {1})}


def about(results: Sequence[tables.Result]) -> str:
  """Returns the paragraph on the setting."""
  start = tables.mean_and_error(
      map(tables.start(), by_stale(results)[32]['on_policy']))
  return f'''\
{CONFIG}: a model of 0.28 million parameters on Countdown, \
{max(results[0]["updates"]):.0f} updates of 256 responses, GRPO without \
entropy bonus, after a warm-up of 32 updates. pass@1 is measured on 532 \
held-out problems, with a standard error of \
{statistics.fmean(r["error"] for r in results):.3f} in each run; before \
training it is {start}. A run collapses at the first evaluation below half of \
its start. No arm is without a correction: the papers have none for stale \
rollouts. Only arms with "clip" in their names clip. No-clip TIS weights by \
min(p_new / p_old, 2): `cispo` with these bounds, which has the same gradient. \
KL is of the behaviour to the policy in training, before and after \
rejection; acceptance, the share of weights at c1, and the tokens rejected by \
sign of the advantage are shares of all tokens. All of these are means over \
the run.'''


def summary(results: Sequence[tables.Result]) -> str:
  """Returns the sentences of the documentation."""
  parts = []
  for stale, arms in by_stale(results).items():
    said = '; '.join(
        tables.compared(arms, LABELS, arm, other, last) for arm, other in (
            ('jackpot', 'clip'), ('no_clip_tis', 'clip'),
            ('jackpot', 'no_clip_tis'), ('jackpot_clip', 'clip'),
            ('jackpot_clip', 'no_clip_tis')))
    parts.append(f'{"At" if parts else "at"} {stale} updates on the rollouts '
                 f'of one policy, held-out pass@1 is: {said}.')
  return ' '.join(parts)


def sections(results: Sequence[tables.Result]) -> str:
  """Returns the tables of each staleness."""
  parts = []
  for stale, arms in by_stale(results).items():
    rows = {title: (mean_of(name), 3) for title, name in (
        ('entropy', 'entropy'), ('acceptance', 'acceptance'),
        ('KL before', 'kl_before'), ('KL after', 'kl_after'),
        ('at c1', 'at_c1'), ('rejected, positive', 'rejected_positive'),
        ('rejected, negative', 'rejected_negative'))}
    parts += [
        f'## {stale} updates on the rollouts of one policy',
        tables.table(arms, LABELS, {
            'pass@1 at the end': last,
            'pass@1, equal seconds': tables.at_equal(arms, 'elapsed'),
            'highest': lambda r: max(r['pass@1']),
            'collapsed': (lambda r: collapse(r) is not None, 2), **rows}),
        tables.markdown(['pass@1', 'above its start'], [
            [LABELS[arm], tables.difference(
                arms, arm, arm, last, tables.start())] for arm in arms]),
        tables.differences(arms, LABELS, AGAINST, {'pass@1': last})]
  return '\n\n'.join(parts)


def draw(results: Sequence[tables.Result], path: pathlib.Path) -> None:
  """Draws pass@1 by updates and by seconds, and KL, at each staleness."""
  looks = {
      'on_policy': ('0.5', ':'), 'clip': ('C0', '-'),
      'no_clip_tis': ('C1', '-'), 'jackpot': ('C2', '-'),
      'jackpot_clip': ('C2', '--'), 'mask': ('C4', '--'),
      'weights': ('C5', '--')}
  tables.draw(path, [
      tables.Panel(arms, x, y, (text, name), f'{stale} updates', looks, more)
      for stale, arms in by_stale(results).items()
      for x, y, text, name, more in (
          ('updates', 'pass@1', 'updates', 'held-out pass@1', {}),
          ('elapsed', 'pass@1', 'seconds', 'held-out pass@1', {}),
          (PART, 'kl_before', 'updates', 'KL(behaviour || policy), nats',
           {'yscale': 'log'}))], LABELS)


CLAIM = runs.Claim(
    'jackpot', __doc__, 'Jackpot: learning from stale rollouts', CONFIG,
    ('arm', 'stale'), ARMS, range(10, 15), measure, last, about, summary,
    sections, draw)

if __name__ == '__main__':
  runs.program(CLAIM)
