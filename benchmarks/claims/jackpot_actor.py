"""Jackpot's claims on a small task: other models write the responses.

  python -m benchmarks.claims.jackpot_actor --write

Trains configs/jackpot/countdown_actor.py: a policy whose responses a model of a
quarter of its size writes, without a correction, with others and with Jackpot;
and the policy alone, with samples of its own, exact ones and those of weights
and a KV cache in float8. All have three seeds and the same number of updates.
These 30 runs use one core each, in parallel, and take about an hour on 2
cores. Finished runs are not repeated: after an interrupt, the same command
resumes. `--write` saves the tables, the plot and the results of every run in
results/claims.
"""

import datetime
import pathlib

from benchmarks.claims import jackpot_actor_report, runs

CONFIG = 'configs/jackpot/countdown_actor.py'
SEEDS = 0, 1, 2

_NONE = {'off_policy': 'none'}
_TIS = {**_NONE, 'loss.importance': 'tis'}
_FROZEN = {'actor.ppo': False, 'actor.distill': 0.0}
_ALONE = {
    **{f'actor.model.{name}': None for name in (
        'preset', 'width', 'layers', 'heads', 'head_dim', 'mlp_width')},
    'actor.distill': 1.0, 'actor.learning_rate': None}
_FLOAT8 = {**_ALONE, 'sampling.weights': 'float8', 'sampling.kv': 'float8'}
# Fields of each arm, which say what differs from the config.
ARMS = {
    'on_policy': {**_ALONE, **_NONE},
    'jackpot': {},
    'none': _NONE,
    'tis': _TIS,
    'distill': {**_NONE, 'actor.ppo': False},
    'frozen_none': {**_FROZEN, **_NONE},
    'frozen_jackpot': _FROZEN,
    'float8_none': {**_FLOAT8, **_NONE},
    'float8_tis': {**_FLOAT8, **_TIS},
    'float8_jackpot': _FLOAT8,
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
      'arm': arm, 'seed': int(seed), **jackpot_actor_report.numbers_of(rows),
      'machine': where, 'date': str(datetime.date.today())})


def main() -> None:
  """Runs the command line."""
  runs.program(
      'benchmarks.claims.jackpot_actor', __doc__, names=names(), train=train,
      report=jackpot_actor_report)


if __name__ == '__main__':
  main()
