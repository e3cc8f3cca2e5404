"""PKPO on ARC-mini with a continuous reward: k=8 against k=1.

  python -m benchmarks.claims.pkpo_arc --write

Trains configs/pkpo/arc_mini.py, whose reward is the share of right cells, with
k=1 (leave-one-out), k=8, k=16=n, and k=1 with half the learning rate or with an
entropy bonus; one more arm samples from the warm start without training. All
have the same steps and numbers of samples, on one core each. Settings were
chosen on another seed, see the config. Finished runs are not repeated: after an
interrupt, the same command resumes.
"""

import datetime
import json
import pathlib
from typing import NamedTuple

from benchmarks.claims import pkpo_arc_report
from benchmarks.claims import runs as runs_lib

CONFIG = 'configs/pkpo/arc_mini.py'
# Fields of each arm. A learning rate of 0 keeps the warm start's parameters.
ARMS = {
    'frozen': {'optimizer.learning_rate': 0.0, 'pkpo.k': 16},
    '1': {'pkpo.k': 1},
    '8': {'pkpo.k': 8},
    '16': {'pkpo.k': 16},
    'half': {'pkpo.k': 1, 'optimizer.learning_rate': 2.5e-4},
    'entropy': {'pkpo.k': 1, 'loss.entropy_bonus': 0.1},
}
SEEDS = 0, 1, 2, 3, 4


class Run(NamedTuple):
  """A training run, named 'arm,seed'."""
  arm: str
  seed: int

  @property
  def name(self) -> str:
    """Name of the run, its folder and its result."""
    return f'{self.arm},{self.seed}'


def runs() -> list[Run]:
  """Returns all runs: those of the main comparison first, seed by seed."""
  some = ('1', '8', 'frozen'), ('half', '16', 'entropy')
  assert {arm for arms in some for arm in arms} == set(ARMS)
  return [Run(arm, seed) for arms in some for seed in SEEDS for arm in arms]


def train(run: Run, folder: pathlib.Path, where: str) -> None:
  """Trains, evaluates, and writes the result as JSON.

  Args:
    run: the run.
    folder: parent folder of the runs and results.
    where: description of the machine.
  """
  from jaxrl_llm import config as config_lib
  from jaxrl_llm import evaluate
  fields = {'seed': run.seed, 'eval.every': 0, 'eval.samples': 1, 'eval.k': 1,
            **ARMS[run.arm]}
  rows = runs_lib.train_arm(CONFIG, run.name, folder, fields)[1:]
  config = config_lib.load(CONFIG, {
      **fields, 'workdir': str(folder / run.name), 'log.display': False,
      'mesh.cpu_devices': 1, 'eval.samples': pkpo_arc_report.SAMPLES,
      'eval.k': pkpo_arc_report.KS})
  found = evaluate.evaluate(config, 'last')
  responses = [json.loads(line) for line in
               pathlib.Path(found['responses']).read_text().splitlines()]
  runs_lib.save(folder, run.name, {
      **run._asdict(), 'k': config.pkpo.k, 'steps': len(rows),
      **pkpo_arc_report.numbers_of(rows, found, responses, config.task),
      'machine': where, 'date': str(datetime.date.today())})


def main() -> None:
  """Runs the command line."""
  named = {run.name: run for run in runs()}
  runs_lib.program(
      'benchmarks.claims.pkpo_arc', __doc__, names=list(named),
      train=lambda name, *rest: train(named[name], *rest),
      report=pkpo_arc_report,
      order=lambda result: (list(ARMS).index(result['arm']), result['seed']))


if __name__ == '__main__':
  main()
