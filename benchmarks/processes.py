"""Time of a step in two processes of one device, and in one of two devices.

  python -m benchmarks.processes --write

Runs the first steps of configs/countdown.py in turn: one process with two
devices, then two processes with one device each, which compute the same. Gives
the medians of the seconds of a step, and in two processes the time of the
gather of a wave's table, begun when both are there. Takes about 8 minutes on 2
cores. `--write` saves the report in results/processes.md.
"""

import argparse
import datetime
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.rl_step import machine
from jaxrl_llm.monitoring import metrics

ROOT = pathlib.Path(__file__).parents[1]
RESULT = ROOT / 'benchmarks/results/processes.md'
STEPS, SKIPPED = 24, 4  # the first steps compile
ROWS = 512  # of a wave
_TIMES = 'GATHER_TIMES'  # names the file of the gathers' times


def worker() -> None:
  """Trains, and notes the time of each gather of a wave's table."""
  from jaxrl_llm import train
  from jaxrl_llm.sharding import processes
  gather, file = processes.Processes.gather_rows, open(os.environ[_TIMES], 'a')

  def timed(self, shard, mine, extra=None):
    self.channel.gather()  # waits for the slower one
    began = time.perf_counter()
    found = gather(self, shard, mine, extra)
    if len(shard) == ROWS:
      file.write(f'{time.perf_counter() - began}\n')
      file.flush()
    return found

  processes.Processes.gather_rows = timed
  sys.argv.remove('--worker')
  train.main()


def run(count: int, folder: pathlib.Path, cache: pathlib.Path,
        timed: bool = False) -> dict[str, Any]:
  """Runs the job; returns the seconds of its steps, and of their gathers."""
  with socket.create_server(('localhost', 0)) as server:
    port = server.getsockname()[1]
  env = {
      **os.environ, 'JAX_PLATFORMS': 'cpu', _TIMES: str(folder) + '.times',
      'JAX_COMPILATION_CACHE_DIR': str(cache / 'programs')}
  program = ['-m', 'benchmarks.processes', '--worker'] if timed else [
      '-m', 'jaxrl_llm.train']
  started = [
      subprocess.Popen(
          [sys.executable, *program, '--config=configs/countdown.py', *(
              [f'--process_count={count}', f'--process_id={index}',
               f'--coordinator=localhost:{port}'] if count > 1 else []),
           f'--config.mesh.cpu_devices={2 // count}',
           f'--config.workdir={folder}', f'--config.steps={STEPS}',
           '--config.eval.every=0', '--config.eval.problems=8',
           '--config.checkpoint.every=0', '--config.log.display=false',
           f'--config.sft.cache={cache}'], cwd=ROOT, env=env)
      for index in range(count)]
  if any([process.wait() for process in started]):
    raise RuntimeError('A process has failed.')
  rows = metrics.read(folder / 'metrics.jsonl')[1 + SKIPPED:]
  seconds = [row['seconds/step'] for row in rows]
  found = {'step': statistics.median(seconds)}
  if timed:
    lines = pathlib.Path(env[_TIMES]).read_text().splitlines()
    found['gather'] = statistics.median(map(float, lines))
  return found


def main() -> None:
  """Runs the comparison and prints the report."""
  if '--worker' in sys.argv:
    worker()
    return
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--write', action='store_true')
  parser.add_argument('--repeats', type=int, default=3)
  args = parser.parse_args()
  one, two, gather = [], [], []
  with tempfile.TemporaryDirectory() as place:
    root = pathlib.Path(place)
    run(1, root / 'first', root / 'cache')  # the warm start, the programs
    run(2, root / 'second', root / 'cache')
    for number in range(args.repeats):
      one.append(run(1, root / f'one{number}', root / 'cache')['step'])
      two.append(run(2, root / f'two{number}', root / 'cache')['step'])
      gather.append(run(
          2, root / f'timed{number}', root / 'cache', True)['gather'])
  ratios = [b / a for a, b in zip(one, two)]
  shares = [g / b for g, b in zip(gather, two)]
  spread = lambda x, form: (
      f'{statistics.median(x):{form}} ({min(x):{form}} to {max(x):{form}})')
  text = f'''# Two processes against one

`python -m benchmarks.processes`, {datetime.date.today()}, {machine()}.

configs/countdown.py, steps {SKIPPED + 1} to {STEPS}: medians of a run, then \
median, least and most of {args.repeats} runs, taken in turn.

| | seconds |
| --- | --- |
| step, 1 process x 2 devices | {spread(one, ".3f")} |
| step, 2 processes x 1 device | {spread(two, ".3f")} |
| ratio | {spread(ratios, ".2f")} |
| gather of the table, once both are there | {spread(gather, ".5f")} |
| the same, share of the step | {spread(shares, ".2%")} |
'''
  print(text)
  print(json.dumps(dict(one=one, two=two, gather=gather)))
  if args.write:
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
