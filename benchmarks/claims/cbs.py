"""CBS's claims on a small task: which rollouts to train on.

  python -m benchmarks.claims.cbs --write

Trains configs/cbs/countdown.py with GRPO, DAPO and GSPO: on all responses, on
those that the bandit picks, and on random ones, with a global buffer and within
groups (CBS*); with GRPO also without parts of the bandit's reward. All have
three seeds and the same number of sampled responses. These 51 runs use one core
each, in parallel, and take about two hours on 2 cores. Finished runs are not
repeated: after an interrupt, the same command resumes. `--write` saves the
table, the plot and the results of every run in results/claims.
"""

import datetime
import pathlib
from typing import Any

from benchmarks.claims import cbs_report, runs

CONFIG = 'configs/cbs/countdown.py'
SEEDS = 0, 1, 2
OBJECTIVES = 'grpo', 'dapo', 'gspo'
PICKED = 64  # rows of CBS*: 2 of the 8 of each of 32 groups


def fields_of(arm: str) -> dict[str, Any]:
  """Returns the fields of an arm, which say what differs from the config."""
  return {
      'all': {'selection': 'all_rows'},
      'random': {'selection': 'random', 'random.rounds': 2},
      'random_intra': {'selection': 'random', 'random.rows': PICKED},
      'raw_gain': {'cbs.ablate': 'raw_gain'},
      'no_entropy': {'cbs.ablate': 'no_entropy'},
  }.get(arm, {})


def names() -> list[str]:
  """Returns the names of all runs, 'objective,arm,seed'."""
  arms = [(objective, arm) for objective in OBJECTIVES
          for arm in ('all', 'cbs', 'random', 'cbs_intra', 'random_intra')]
  arms += [('grpo', 'raw_gain'), ('grpo', 'no_entropy')]
  return [f'{objective},{arm},{seed}'
          for seed in SEEDS for objective, arm in arms]


def train(name: str, folder: pathlib.Path, where: str) -> None:
  """Does a run, and saves its result.

  Args:
    name: of the run.
    folder: parent folder of the runs and results.
    where: description of the machine.
  """
  objective, arm, seed = name.split(',')
  spec = objective + '_intra' * (arm == 'cbs_intra')
  rows = runs.train_arm(
      f'{CONFIG}:{spec}', name, folder, {'seed': int(seed), **fields_of(arm)})
  runs.save(folder, name, {
      'objective': objective, 'arm': arm, 'seed': int(seed),
      **cbs_report.numbers_of(rows), 'machine': where,
      'date': str(datetime.date.today())})


def main() -> None:
  """Runs the command line."""
  runs.program(
      'benchmarks.claims.cbs', __doc__, names=names(), train=train,
      report=cbs_report)


if __name__ == '__main__':
  main()
