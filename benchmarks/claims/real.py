"""The methods on a real language model: SmolLM2-135M-Instruct on arithmetic.

  python -m benchmarks.claims.real --write

Trains configs/real/smollm2.py, GRPO, and the same with PKPO (k=4 of 8), SPEED,
or Jackpot (rollouts of 8-bit weights, one step old), from the weights of the
model, with about the same number of samples and three seeds, each with its own
problems. The settings are those of the config, chosen on other seeds. Each run
has one core. Runs begin in the order of `names`, GRPO and PKPO first, and are
not repeated: after an interrupt, the same command resumes, and `--report`
writes what is there.
"""

import collections
import datetime
import json
import pathlib
from typing import Any

from benchmarks.claims import real_report
from benchmarks.claims import runs as runs_lib

CONFIG = 'configs/real/smollm2.py'
SEEDS = 0, 1, 2
# Fields of each arm; None is the model as it is.
ARMS: dict[str, dict[str, Any] | None] = {
    'start': None,
    'grpo': {},
    'pkpo': {'advantage': 'pkpo', 'pkpo.k': 4},
    'speed': {'curriculum': 'speed', 'curriculum_prompts': 24,
              'speed.n_init': 4},
    'jackpot': {'off_policy': 'jackpot', 'sampling.weights': 'int8',
                'actor.lag': 1},
}


def names() -> list[str]:
  """Returns the names of all runs, 'arm,seed', in the order they begin."""
  waves = ('start', 'grpo', 'pkpo'), ('speed',), ('jackpot',)
  assert {arm for arms in waves for arm in arms} == set(ARMS)
  return [f'{arm},{seed}' for arms in waves for seed in SEEDS for arm in arms]


def train(name: str, folder: pathlib.Path, where: str) -> None:
  """Trains, evaluates, and writes the result as JSON.

  Args:
    name: of the run.
    folder: parent folder of the runs and results.
    where: description of the machine.
  """
  from jaxrl_llm import config as config_lib
  from jaxrl_llm import evaluate
  arm, seed = name.split(',')
  fields = {'seed': int(seed), 'task.seed': int(seed), 'eval.every': 0,
            'eval.samples': 1, 'eval.k': 1, **(ARMS[arm] or {})}
  rows = [] if ARMS[arm] is None else runs_lib.train_arm(
      CONFIG, name, folder, fields)[1:]
  config = config_lib.load(CONFIG, {
      **fields, 'workdir': str(folder / name), 'log.display': False,
      'mesh.cpu_devices': 1, 'eval.samples': real_report.SAMPLES,
      'eval.k': real_report.KS})
  found = evaluate.evaluate(config, 'last' if rows else 'start')
  right = collections.Counter()
  for line in pathlib.Path(found['responses']).read_text().splitlines():
    response = json.loads(line)
    right[response['problem_id']] += round(response['reward'])
  runs_lib.save(folder, name, {
      'arm': arm, 'seed': int(seed),
      **real_report.numbers_of(rows, [right[i] for i in sorted(right)]),
      'machine': where, 'date': str(datetime.date.today())})


def main() -> None:
  """Runs the command line."""
  runs_lib.program(
      'benchmarks.claims.real', __doc__, names=names(), train=train,
      report=real_report, order=lambda result: (
          list(ARMS).index(result['arm']), result['seed']))


if __name__ == '__main__':
  main()
