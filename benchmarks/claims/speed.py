"""SPEED's claims on a small task: samples, compute and time to an accuracy.

  python -m benchmarks.claims.speed --write

Trains configs/speed/countdown.py with RLOO, DAPO and PKPO, with and without
SPEED, and samples from the model before training to count the samples of an
informative prompt. All have three seeds and about the same number of generated
samples. These 51 runs use one core each, in parallel, and take about an hour on
2 cores. Finished runs are not repeated: after an interrupt, the same command
resumes. `--write` saves the table, the plot and the results of every run in
results/claims.
"""

import datetime
import pathlib
from typing import Any

from benchmarks.claims import runs, speed_report

CONFIG = 'configs/speed/countdown.py'
SEEDS = 0, 1, 2

# Fields of each arm, which say what differs from the config. The steps make the
# numbers of generated samples about equal.
_ALL = {'curriculum': 'uniform', 'curriculum_prompts': None, 'steps': 150,
        'eval.every': 10}
_DROP = {**_ALL, 'curriculum': 'dynamic'}
_DAPO = {'advantage': 'grpo', 'loss.clip_high': 0.28}
_FROZEN = {'optimizer.learning_rate': 0.0, 'eval.every': 0}


def _pkpo(k: int) -> dict[str, dict[str, Any]]:
  """Returns the arms of PKPO with a k."""
  fields = {'advantage': 'pkpo', 'pkpo.k': k}
  return {
      f'pkpo{k}': {**_ALL, **fields, 'steps': 120},
      f'pkpo{k}_pass_rate': {**fields, 'speed.rule': 'pass_rate', 'steps': 60},
      f'pkpo{k}_signal': {**fields, 'steps': 50}}


ARMS = {
    'rloo': _ALL,
    'speed_rloo_4': {},
    'rloo_drop': _DROP,
    'dapo': {**_DROP, **_DAPO},
    'speed_dapo_4': _DAPO,
    'speed_rloo_6': {'speed.n_init': 6, 'steps': 65},
    'speed_rloo_8': {'speed.n_init': 8, 'steps': 60},
    **_pkpo(8),
    **_pkpo(4),
    'start': {**_ALL, **_FROZEN, 'steps': 100},
    **{f'start_{n}': {**_FROZEN, 'speed.n_init': n, 'steps': 50}
       for n in (4, 6, 8)},
}


def names() -> list[str]:
  """Returns the names of all runs, 'arm,seed'."""
  return [f'{arm},{seed}' for seed in SEEDS for arm in ARMS]


def train(name: str, folder: pathlib.Path, where: str) -> None:
  """Does a run, and saves its result.

  Args:
    name: of the run.
    folder: parent folder of the runs and results.
    where: description of the machine.
  """
  arm, seed = name.split(',')
  rows = runs.train_arm(
      CONFIG, name, folder, {'seed': int(seed), **ARMS[arm]})
  runs.save(folder, name, {
      'arm': arm, 'seed': int(seed), **speed_report.numbers_of(rows),
      'machine': where, 'date': str(datetime.date.today())})


def main() -> None:
  """Runs the command line."""
  runs.program(
      'benchmarks.claims.speed', __doc__, names=names(), train=train,
      report=speed_report, unwritten=['phases'])


if __name__ == '__main__':
  main()
