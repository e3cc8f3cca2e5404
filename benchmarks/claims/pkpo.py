"""PKPO's claims on small tasks: the effect of optimising pass@k on pass@k.

  python -m benchmarks.claims.pkpo --write

Trains configs/pkpo/countdown.py, and countdown_hard.py on 'mixed' and on 'hard'
problems, with k = 1, 2, 4, 8, 16 and with annealed k; one more arm samples from
the warm start without training. All have three seeds and the same number of
steps. These 63 runs use one core each, in parallel, and take about two hours on
2 cores. Finished runs are not repeated: after an interrupt, the same command
resumes. `--write` saves the table, the plots and the results of every run in
results/claims.
"""

import datetime
import pathlib
from typing import Any, NamedTuple

from benchmarks.claims import pkpo_report
from benchmarks.claims import runs as runs_lib
from configs.pkpo import countdown, countdown_hard

CONFIGS = {
    'default': 'configs/pkpo/countdown.py',
    'mixed': 'configs/pkpo/countdown_hard.py:mixed',
    'hard': 'configs/pkpo/countdown_hard.py:hard',
}
# Fields of each arm. A learning rate of 0 keeps the warm start's parameters.
ARMS = {
    'frozen': {'optimizer.learning_rate': 0.0, 'loss.entropy_bonus': 0.0,
               'pkpo.k': 16, 'drop_zero_advantage': True},
    **{str(k): {'pkpo.k': k} for k in (1, 2, 4, 8, 16)},
    'annealed': {},  # see `fields_of`
}
SEEDS = 0, 1, 2
# Sizes of the held-out sets, one number for each kind of problem.
HELDOUT = {
    'default': {'all': (48, 250, 170, 64)},
    'mixed': {'ordinary': (32, 60, 60, 48, 0, 0),
              'hard': (0, 0, 0, 0, 100, 100)},
}
HELDOUT['hard'] = HELDOUT['mixed']


class Run(NamedTuple):
  """A training run, named 'task,arm,seed'."""
  task: str
  arm: str
  seed: int

  @property
  def name(self) -> str:
    """Name of the run, its folder and its result."""
    return ','.join(map(str, self)).replace(' ', '-')


def runs() -> list[Run]:
  """Returns all runs; neighbours in the list have different warm starts."""
  arms = ['1', '4', '8', 'frozen', 'annealed', '2', '16']
  assert set(arms) == set(ARMS)
  return [Run(task, arm, seed)
          for arm in arms for seed in SEEDS for task in CONFIGS]


def fields_of(run: Run) -> dict[str, Any]:
  """Returns the fields that the run's arm sets."""
  if run.arm == 'annealed':
    module = countdown if run.task == 'default' else countdown_hard
    return {'pkpo.k': module.ANNEALED}
  return ARMS[run.arm]


def train(run: Run, folder: pathlib.Path, where: str) -> None:
  """Trains, evaluates, and writes the result as JSON.

  Args:
    run: the run.
    folder: parent folder of the runs and results.
    where: description of the machine.
  """
  from jaxrl_llm import config as config_lib
  from jaxrl_llm import evaluate
  from jaxrl_llm import train as train_lib
  from jaxrl_llm.host import stages
  from jaxrl_llm.monitoring import metrics
  workdir = folder / run.name
  fields = {
      'seed': run.seed, 'workdir': str(workdir), 'mesh.cpu_devices': 1,
      'warm_start.cache': str(folder / 'warm_start'), 'log.display': False,
      'eval.every': 0, 'eval.samples': 1, 'eval.k': 1, 'checkpoint.every': 0,
      **fields_of(run)}
  config = config_lib.load(CONFIGS[run.task], fields)
  stages.validate(config)
  train_lib.train(config, run.name)
  heldout = {}
  for name, sizes in HELDOUT[run.task].items():
    changed = config_lib.load(CONFIGS[run.task], {
        **fields, 'task.heldout': sizes, 'eval.samples': 32,
        'eval.k': pkpo_report.KS})
    found = evaluate.evaluate(changed, 'last')
    heldout[name] = {key: round(found[key], 4) for key in (
        f'pass@{k}' for k in pkpo_report.KS)}
  rows = metrics.read(workdir / 'metrics.jsonl')[1:]
  runs_lib.save(folder, run.name, {
      **run._asdict(), 'k': config.pkpo.k, 'steps': len(rows),
      **pkpo_report.numbers_of(rows, config.task.train), 'heldout': heldout,
      'machine': where, 'date': str(datetime.date.today())})


def main() -> None:
  """Runs the command line."""
  named = {run.name: run for run in runs()}
  runs_lib.program(
      'benchmarks.claims.pkpo', __doc__, names=list(named),
      train=lambda name, *rest: train(named[name], *rest), report=pkpo_report,
      order=lambda result: (list(ARMS).index(result['arm']), result['seed']))


if __name__ == '__main__':
  main()
