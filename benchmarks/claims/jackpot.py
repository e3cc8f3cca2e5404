"""Jackpot's claims on a small task: learning from stale rollouts.

  python -m benchmarks.claims.jackpot --write

Trains configs/jackpot/countdown.py with 32 and with 64 updates on the rollouts
of one policy: without a correction, with other corrections, with Jackpot, and
with parts of it; and once on-policy. All have three seeds and the same number
of updates. These 57 runs use one core each, in parallel, and take about an hour
on 2 cores. Finished runs are not repeated: after an interrupt, the same command
resumes. `--write` saves the table, the plots and the results of every run in
results/claims.
"""

import datetime
import pathlib
from typing import Any

from benchmarks.claims import jackpot_report, runs

CONFIG = 'configs/jackpot/countdown.py'
SEEDS = 0, 1, 2
UPDATES = 192  # optimiser steps of a run
ROWS = 256  # responses of an optimiser step
EVERY = 32  # updates between two evaluations, or more

_NONE = {'off_policy': 'none'}
# Fields of each arm, which say what differs from the config.
ARMS = {
    'no_clip': _NONE,
    'clip': {**_NONE, 'loss.objective': 'clip'},
    # The gradient of min(p_new / p_old, 2) log p_new.
    'no_clip_tis': {
        **_NONE, 'loss.objective': 'cispo', 'loss.clip_low': 1.0,
        'loss.clip_high': 1.0},
    'jackpot': {},
    'jackpot_clip': {'loss.objective': 'clip'},
    'mask': {'jackpot.weight': False},
    'weights': {'jackpot.mask': 'none'},
    'expected': {'jackpot.mask': 'expected'},
    'all': {'jackpot.denominator': 'all'},
}


def names() -> list[str]:
  """Returns the names of all runs, 'arm,staleness,seed'."""
  return [
      name for seed in SEEDS for name in (
          f'on_policy,1,{seed}', *(
              f'{arm},{stale},{seed}' for stale in (32, 64) for arm in ARMS))]


def fields_of(arm: str, stale: int) -> dict[str, Any]:
  """Returns the fields of an arm at a staleness, in updates per rollout batch.
  """
  rows = {
      'steps': UPDATES // stale, 'learner.updates': stale,
      'prompts_per_step': ROWS * stale // 8, 'samples_per_prompt': 8,
      'eval.every': max(EVERY // stale, 1)}
  return {**rows, **(_NONE if arm == 'on_policy' else ARMS[arm])}


def train(name: str, folder: pathlib.Path, where: str) -> None:
  """Does a run, and saves its result.

  Args:
    name: of the run.
    folder: parent folder of the runs and results.
    where: description of the machine.
  """
  from jaxrl_llm.host import rounds
  arm, stale, seed = name.split(',')
  updates, run = [], rounds.run

  def noted(*args, **kwargs):
    outcome = run(*args, **kwargs)
    updates.extend(outcome.metrics)
    return outcome

  rounds.run = noted  # metrics.jsonl has the means of a step's updates
  rows = runs.train_arm(CONFIG, name, folder, {
      'seed': int(seed), **fields_of(arm, int(stale))})
  runs.save(folder, name, {
      'arm': arm, 'stale': int(stale), 'seed': int(seed),
      **jackpot_report.numbers_of(rows, updates, int(stale)),
      'machine': where, 'date': str(datetime.date.today())})


def main() -> None:
  """Runs the command line."""
  runs.program(
      'benchmarks.claims.jackpot', __doc__, names=names(), train=train,
      report=jackpot_report)


if __name__ == '__main__':
  main()
