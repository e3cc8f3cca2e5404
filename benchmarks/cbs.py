"""Time of CBS: of its parts, and in the steps of the default job.

  python -m benchmarks.cbs --write

First table: features, scheduler and picks alone, on made-up tables. Second
table: the first steps of configs/countdown.py with each selection, in turns.
It takes about ten minutes on 2 cores, and three more for the warm start if it
is not cached. `--write` saves the report in results/cbs.md; `--tiny` only
checks that everything runs.
"""

import argparse
import datetime
import os
import pathlib
import statistics
import tempfile
import time
from typing import Any, Callable

import jax
import numpy as np

from benchmarks.rl_step import machine, markdown
from jaxrl_llm import config as config_lib
from jaxrl_llm import train
from jaxrl_llm.monitoring import metrics
from jaxrl_llm.prepare import stages
from jaxrl_llm.selection import bandit, cbs
from jaxrl_llm.types import Probe, RunSizes, Table

RESULT = pathlib.Path(__file__).parent / 'results/cbs.md'
SAMPLES = 8
# Rows of a round, and rounds in the buffer.
BUFFERS = (512, 2), (1024, 2), (1024, 4), (1024, 5)
PARTS = 'features', 'moments', 'scores', 'picks', 'all of select', 'feedback'
_EARLY = {'cbs.warmup': 0, 'cbs.epsilon': 0.2}  # picks by score at once
_EVERY = {'drop_zero_advantage': False}
_INTRA = {'selection': 'cbs', 'cbs.scope': 'intra_group', **_EARLY, **_EVERY}
SELECTIONS = {
    'default job': {},
    'CBS, 512 of 1,024': {'selection': 'cbs', **_EARLY},
    'all rows': _EVERY,
    'CBS*, 153 of 512': {**_INTRA, 'cbs.pool': True},
    'CBS*, 2 of each 8': _INTRA}
BASES = dict(zip(SELECTIONS, ['default job'] * 2 + ['all rows'] * 3))
WARM = 4  # first steps of a run, which compile and fill the buffer
PHASES = 'step', 'sample', 'score', 'update', 'select'


def made_up(rows: int, rounds: int) -> Table:
  """Returns a table of `rounds` rounds of `rows` rows, at random."""
  rng, count = np.random.default_rng(0), rows * rounds
  group, sample = np.divmod(np.arange(count), SAMPLES)
  normal = lambda: rng.standard_normal(count).astype(np.float32)
  return Table(
      group=group, sample=sample.astype(np.int32),
      problem=group.astype(np.int32), policy_step=np.zeros(count, np.int32),
      reward=(rng.random(count) < .5).astype(np.float32),
      valid=np.ones(count, bool),
      length=rng.integers(1, 4096, count).astype(np.int32),
      truncated=rng.random(count) < .1, trained=np.ones(count, bool),
      advantage=normal(), group_mean=normal(), group_std=np.abs(normal()),
      entropy=np.abs(normal()), clip_share=rng.random(count).astype(np.float32),
      usage=rng.integers(0, 3, count).astype(np.int32),
      round=np.repeat(np.arange(rounds, dtype=np.int32), rows),
      probe=np.ones(count, bool))


def parts_of(rows: int, rounds: int) -> dict[str, Callable[[], Any]]:
  """Returns the functions of PARTS, for a round that picks `rows` rows."""
  table, count = made_up(rows, rounds), rows * rounds
  made = cbs.create(
      RunSizes(problems=1, seed=0, batch=rows // SAMPLES, samples=SAMPLES,
            prompts=rows // SAMPLES, response=4096),
      cbs.Options(rounds=rounds, warmup=0, epsilon=.2))
  network, rng = bandit.Network(), np.random.default_rng(1)
  state = made.feedback(made.init((0,)), Probe(.5, .5, 0))._replace(
      rounds=rounds - 1)
  features = bandit.features(
      table, np.arange(count), rounds=rounds, response=4096)
  scheduler = state.scheduler._replace(
      moments=bandit.observe(state.scheduler.moments, features))
  scores = bandit.scores(network, scheduler, features)
  age = features[:, -1].astype(np.int16)
  newest, order = rng.random(rows) < .2, rng.permutation(count)
  after, _ = made.select(state, table, None, (0,))
  return dict(zip(PARTS, (
      lambda: bandit.features(
          table, np.arange(count), rounds=rounds, response=4096),
      lambda: bandit.observe(scheduler.moments, features),
      lambda: bandit.scores(network, scheduler, features),
      lambda: bandit.pick(scores, age, newest, order),
      lambda: made.select(state, table, None, (0,)),
      lambda: made.feedback(after, Probe(.6, .4, 1)))))


def alone(repeats: int, buffers: Any) -> str:
  """Measures the parts, and returns their table."""
  rows = []
  for size, rounds in buffers:
    functions, found = parts_of(size, rounds), {}
    for _ in range(repeats + 1):
      for name, function in functions.items():
        start = time.perf_counter()
        function()
        found.setdefault(name, []).append(time.perf_counter() - start)
    rows.append([f'{size:,} of {size * rounds:,}', *(
        _spread([1e3 * x for x in found[name][1:]], 2) for name in PARTS)])
  return markdown(['picked', *(f'{name}, ms' for name in PARTS)], rows)


def _spread(values: list[float], digits: int) -> str:
  """Returns the median and the range."""
  middle, low, high = (
      f'{f(values):.{digits}f}' for f in (statistics.median, min, max))
  return f'{middle} ({low} to {high})'


def steps_of(fields: dict[str, Any], steps: int, tiny: bool) -> list[Any]:
  """Trains the default job for some steps, and returns its later metrics."""
  with tempfile.TemporaryDirectory() as folder:
    small = {'prompts_per_step': 8, 'sft.steps': 1,
             'sft.cache': folder, 'eval.problems': 2}
    loaded = config_lib.load('configs/countdown.py', {
        'workdir': folder, 'steps': steps, 'eval.every': 0,
        'eval.samples': 1, 'eval.k': 1, 'checkpoint.every': 0,
        'log.display': False, 'log.tensorboard': False, **fields,
        **(small if tiny else {})})
    stages.validate(loaded)
    train.train(loaded)
    return metrics.read(pathlib.Path(folder, 'metrics.jsonl'))[1 + WARM:]


def in_steps(turns: int, steps: int, tiny: bool) -> str:
  """Measures the default job with each selection; returns its table."""
  found = {name: [] for name in SELECTIONS}
  for turn in range(turns):
    for name in [*SELECTIONS][::-1 if turn % 2 else 1]:
      found[name] += steps_of(SELECTIONS[name], steps, tiny)
  table = []
  for name, rows in found.items():
    seconds = {
        phase: [row[f'seconds/{phase}'] for row in rows] for phase in PHASES}
    base = statistics.median(
        row['seconds/update'] for row in found[BASES[name]])
    table.append([
        name, f'{statistics.median(row["batch/rows"] for row in rows):.0f}',
        *(_spread([1e3 * x for x in seconds[phase]], 1) for phase in PHASES),
        _spread([100 * part / whole for part, whole in zip(
            seconds['select'], seconds['step'])], 2),
        f'{statistics.median(seconds["update"]) / base:.2f}'])
  return markdown(
      ['', 'rows of a step', *(f'{phase}, ms' for phase in PHASES),
       'select, % of the step', 'update, ratio'], table)


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--write', action='store_true', help=f'into {RESULT}')
  parser.add_argument('--tiny', action='store_true')
  args = parser.parse_args()
  jax.config.update('jax_num_cpu_devices', len(os.sched_getaffinity(0)))
  repeats, turns, steps = (2, 1, 5) if args.tiny else (100, 3, 15)
  buffers = ((16, 2),) if args.tiny else BUFFERS
  text = f'''# Time of CBS

`python -m benchmarks.cbs`, {datetime.date.today()}, {machine()}; \
jax {jax.__version__} on {jax.default_backend()}. Medians with their range.

## Parts

A round picks rows of the last batches. The scheduler has two hidden layers of \
64. "all of select" has the features, their moments, the scores, the picks and \
the correlations for the metrics; "feedback" is one step of the scheduler. \
{repeats} repeats.

{alone(repeats, buffers)}

## Steps of the default job

configs/countdown.py with 512 responses a step, {turns} runs of {steps} steps \
each in turn, without the first {WARM} steps of each. "select" is no part of \
"update". The last column is the time of the update over that of the same job \
with all responses. The default job leaves rows without an advantage out of \
the update; the last three rows train on them too.

{in_steps(turns, steps, args.tiny)}
'''
  print(text)
  if args.write:
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
