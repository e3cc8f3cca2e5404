"""Starts runs of several processes on this machine, as a user does.

As a program it is a process of such a run, see `main`.
"""

import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
from typing import Any, Sequence

import numpy as np
import optax

from jaxrl_llm import train
from jaxrl_llm.jobs import train as loop
from jaxrl_llm.learner import optimizer
from jaxrl_llm.selection import bandit
from jaxrl_llm.tasks import countdown
from tests.helpers import devices, tiny

# On a busy machine a process that compiles may not answer for over 20 s.
LIMITS = dict(processes__patience=90)
_MEASURED = ('seconds/', 'speed/tokens', 'speed/flops_share', 'memory/')


def start(
    folder: pathlib.Path, fields: dict[str, Any], *, count: int = 1,
    share: int = 1, programs: pathlib.Path | None = None,
    module: str = 'jaxrl_llm.train',
    sgd: bool = False,
    full: int | None = None,
    own: Sequence[dict[str, Any]] = (),
    stopped: int = 0) -> list[subprocess.Popen]:
  """Starts the processes of a run; their output goes to files in `folder`.

  Args:
    folder: parent of the workdir, 'run'.
    fields: of the config, named `learner__updates`.
    count: number of processes.
    share: devices of each.
    programs: folder of a compilation cache, if the tests keep none.
    module: program.
    sgd: with the module `tests.helpers.many`, use SGD in place of AdamW, which
      amplifies the rounding of gradients near zero.
    full: with the module `tests.helpers.many`, the process whose disk is full
      for some steps.
    own: fields of each process alone.
    stopped: exit code of a run that was asked to stop.
  """
  folder.mkdir(exist_ok=True, parents=True)
  with socket.create_server(('localhost', 0)) as server:
    port = server.getsockname()[1]
  flags = devices.QUICK + f' --xla_force_host_platform_device_count={share}'
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': flags}
  if sgd:
    env['SGD'] = '1'
  if full is not None:
    env['FULL'] = f'--process_id={full}'
  if programs:
    del env['JAX_COMPILATION_CACHE_DIR']
    env['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
    fields = {'compilation_cache': devices.kept(programs), **fields}
  started = []
  for index in range(count):
    given = {
        'workdir': folder / 'run', 'log__tensorboard': False,
        'sft__cache': folder.parent / 'warm', **LIMITS, **fields,
        **(own[index] if own else {})}
    place = [
        f'--process_count={count}', f'--process_id={index}',
        f'--coordinator=localhost:{port}'] if count > 1 else []
    with (folder / f'log-{index}.txt').open('ab') as log:
      started.append(subprocess.Popen(
          [sys.executable, '-m', module, '--config=tests/helpers/tiny.py',
           f'--stopped_code={stopped}', *place, *(
              f'--config.{name.replace("__", ".")}={value}'
              for name, value in given.items())],
          cwd=devices.ROOT, env=env, stdout=log, stderr=subprocess.STDOUT))
  return started


def finish(
    processes: Sequence[subprocess.Popen], folder: pathlib.Path,
    seconds: float = 600, codes: Sequence[int] = (0,)) -> None:
  """Waits for processes, which must end well: with one of the exit codes."""
  for index, process in enumerate(processes):
    assert process.wait(seconds) in codes, said(folder, index)


def said(folder: pathlib.Path, index: int) -> str:
  """Returns the end of what a process printed."""
  return (folder / f'log-{index}.txt').read_text()[-4000:]


def rows(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the metrics of a run that do not depend on its speed."""
  lines = (folder / 'run' / 'metrics.jsonl').read_text().splitlines()
  return [
      {k: v for k, v in json.loads(line).items()
       if not k.startswith(_MEASURED)} for line in lines]


def fill_the_disk(first: int, last: int) -> None:
  """Limits files to 4 KB from one step of the run to another."""
  limits, take = resource.getrlimit(resource.RLIMIT_FSIZE), train.take_step

  def step(parts, state, *rest):
    if state.step == first:
      resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
    if state.step == last:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return take(parts, state, *rest)

  loop.take_step = step


def main() -> None:
  """Trains with SGD on rewards that an untrained model gets.

  Prints the least difference between unequal scores of the bandit's choices,
  in units of their rounding.
  """
  adamw, score = optimizer.optax.adamw, bandit.scores
  optimizer.optax.adamw = lambda rate, **fields: (
      optax.sgd(rate) if os.environ.get('SGD') else adamw(rate, **fields))

  def scores(*args, **kwargs):
    found = score(*args, **kwargs)
    unit = np.finfo(np.float32).eps * np.abs(found).max(initial=1e-9)
    print('gap', np.diff(np.unique(found)).min(initial=1.0) / unit, flush=True)
    return found

  bandit.scores = scores
  if os.environ.get('FULL') in sys.argv:
    fill_the_disk(2, 5)
  countdown.Countdown.verify = lambda self, *row: tiny.by_length(*row)
  train.main()


if __name__ == '__main__':
  main()
