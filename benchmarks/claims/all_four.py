"""All four methods in one run, and the run with each of them left out.

  python -m benchmarks.claims.all_four --write

Trains configs/all_four.py, then without SPEED, PKPO, CBS or Jackpot, and
without any of them. Responses are written by 8-bit weights and used one step
later in all of these; a last arm has no method, full precision and no lag. All
have three seeds and about the same number of sampled responses. These 21 runs
use one core each, in parallel, and take about 40 minutes on 2 cores. Finished
runs are not repeated: after an interrupt, the same command resumes. `--write`
saves the table, the plot and the results of every run in results/claims.
"""

import datetime
import pathlib
from typing import Any

from benchmarks.claims import all_four_report, runs

CONFIG = 'configs/all_four.py'
SEEDS = 0, 1, 2
# Without SPEED a step samples 256 responses, with it about twice as many.
_LONGER = {'steps': 188, 'eval.every': 10}
_FRESH = {'actor.lag': 0, 'sampling.weights': None}


def fields_of(arm: str) -> dict[str, Any]:
  """Returns the fields of an arm, which say what differs from the config."""
  speed = {'curriculum': 'uniform', 'curriculum_prompts': None, **_LONGER}
  pkpo = {'advantage': 'grpo'}
  cbs = {'selection': 'all_rows'}
  jackpot = {'off_policy': 'none'}
  return {
      'all_four': {},
      'no_speed': {**speed, 'pkpo.k': '0:4,56:2,113:1'},
      'no_pkpo': pkpo,
      'no_cbs': cbs,
      'no_jackpot': jackpot,
      'none': {**speed, **pkpo, **cbs, **jackpot},
      'none_fresh': {**speed, **pkpo, **cbs, **jackpot, **_FRESH},
  }[arm]


def names() -> list[str]:
  """Returns the names of all runs, 'arm,seed'."""
  return [f'{arm},{seed}' for seed in SEEDS for arm in all_four_report.ARMS]


def train(name: str, folder: pathlib.Path, where: str) -> None:
  """Does a run, and saves its result.

  Args:
    name: of the run.
    folder: parent folder of the runs and results.
    where: description of the machine.
  """
  arm, seed = name.split(',')
  rows = runs.train_arm(
      CONFIG, name, folder, {'seed': int(seed), **fields_of(arm)})
  runs.save(folder, name, {
      'arm': arm, 'seed': int(seed), **all_four_report.numbers_of(rows),
      'machine': where, 'date': str(datetime.date.today())})


def main() -> None:
  """Runs the command line."""
  runs.program(
      'benchmarks.claims.all_four', __doc__, names=names(), train=train,
      report=all_four_report)


if __name__ == '__main__':
  main()
