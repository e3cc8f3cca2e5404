r"""Runs a config, or every trial of its sweep, on this machine.

  python -m jaxrl_llm.launch.run --config=countdown --sweep \
      --workdir=runs/sweep --parallel=2 --config.steps=100

With `--sweep`, which the program `jaxrl-sweep` adds by itself, the trials come
from the config's `get_hyper`; `--config.x=y` sets a field for all of them. Each
trial is a process with its own folder, and its output goes to log.txt there.
The same command, run again, skips finished trials and resumes the others.
`--dry_run` only prints the commands. At the end, a table shows the results;
that of a sweep is also in sweep.md beside the trials.
"""

import argparse
import collections
import fcntl
import json
import os
import pathlib
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple, Sequence

from rich import console

from jaxrl_llm import config as config_lib
from jaxrl_llm.base import own_code
from jaxrl_llm.config import files as config_files
from jaxrl_llm.launch import commands, hyper, local_files, results
from jaxrl_llm.monitoring import metrics as metrics_lib
from jaxrl_llm.storage import paths

_MARGIN = 5.0  # seconds after which a trial that did not stop is killed
_show = console.Console(highlight=False, markup=False, soft_wrap=True).print


class Trial(NamedTuple):
  """A run of the training program.

  Attributes:
    folder: workdir of the trial, named by its number and its fields.
    fields: fields that the sweep sets.
    config: the whole config, as JSON.
    command: the command line of the process.
    grace: seconds that it may take to save and end.
  """
  folder: paths.Path
  fields: dict[str, Any]
  config: str
  command: list[str]
  grace: float = 10.0

  @property
  def logs(self) -> pathlib.Path:
    """Folder on disk of its log.txt."""
    if paths.in_bucket(self.folder):
      return pathlib.Path('runs', str(self.folder).partition('://')[2])
    return self.folder

  @property
  def finished(self) -> bool:
    """True if the folder has the summary of a run with exactly this config.

    The training program, which holds the folder, notes its config in
    config.json. `run` notes that of any program in trial.json, once it is done.

    Raises:
      OSError: the folder cannot be read.
    """
    with paths.explained(self.folder):
      return (self.folder / 'summary.json').exists() and any(
          note.exists() and note.read_bytes() == self.config.encode()
          for note in (self.folder / 'config.json', self.folder / 'trial.json'))


def plan(
    spec: str, *, sweep: bool, workdir: str, overrides: dict[str, str],
    program: Sequence[str], hub: bool = True) -> list[Trial]:
  """Makes the trials and validates their configs.

  Args:
    spec: config file, as for `config.load`.
    sweep: whether to take the trials from the config's `get_hyper`; if False,
      there is one trial.
    workdir: parent folder of the trials' folders.
    overrides: fields set on the command line, for all trials.
    program: the training command.
    hub: whether the hub may be asked for the models.

  Returns:
    The trials, in the order of the sweep.

  Raises:
    ValueError: the config has no `get_hyper`, or a trial has a wrong field.
  """
  settings = [{}]
  if sweep:
    path = spec.partition(':')[0]
    settings = config_files.called(path, 'get_hyper', hyper)
    if not isinstance(settings, (list, tuple)) or not settings or not all(
        isinstance(fields, dict) and all(isinstance(k, str) for k in fields)
        for fields in settings):
      raise ValueError(
          f'get_hyper of {path} gives no trials: return a list with a '
          'dictionary of fields for each, such as hyper.sweep(KEY, VALUES).')
  trials = []
  for number, fields in enumerate(settings):
    twice = sorted(overrides.keys() & {*fields, 'workdir'})
    if twice:
      raise ValueError(
          f'{twice[0]} is set for each trial: remove --config.{twice[0]}'
          f'{" and use --workdir" * (twice[0] == "workdir")}.')
    content = ','.join(
        f'{name.split(".")[-1]}={config_lib.to_text(value)}'
        for name, value in fields.items())
    name = re.sub(r'[^\w.,=+-]+', '_', f'{number:03d}-{content}').strip('-')
    folder = paths.place(workdir) / name[:100]
    given = {**overrides, **fields, 'workdir': str(folder)}
    config = local_files.load(spec, given, hub=hub)
    command = [*program, *commands.argv(spec, given)]
    trials.append(Trial(
        folder, fields, config_lib.to_json(config), command,
        config.checkpoint.grace))
  return trials


def start(trial: Trial) -> subprocess.Popen | None:
  """Starts a trial; returns None if another runner's process still runs it.

  Raises:
    OSError: its folder or its program cannot be used.
    ValueError: its command has a character that no command may have.
  """
  trial.logs.mkdir(parents=True, exist_ok=True)
  with open(trial.logs / 'log.txt', 'ab') as log:
    try:
      # The child inherits the lock with the log file, and holds it to its end.
      fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      return None
    with paths.explained(trial.folder):
      for name in ('summary.json', 'trial.json'):
        (trial.folder / name).unlink(missing_ok=True)
    return subprocess.Popen(
        trial.command, stdin=subprocess.DEVNULL, stdout=log,
        stderr=subprocess.STDOUT, start_new_session=True)


def stop(processes: Sequence[subprocess.Popen], grace: float = 10.0) -> None:
  """Asks process groups to save and end; kills them after `grace` seconds."""
  for number in (signal.SIGTERM, signal.SIGKILL):
    for process in processes:
      if process.poll() is None:
        os.killpg(process.pid, number)
    deadline = time.monotonic() + grace
    for process in processes:
      try:
        process.wait(max(deadline - time.monotonic(), 0.0))
      except subprocess.TimeoutExpired:
        pass


def run(
    trials: Sequence[Trial], parallel: int, attached: bool = False,
) -> list[str]:
  """Runs the trials that are not finished, `parallel` at a time.

  A failed trial does not stop the others. An interrupt also ends the running
  trials.

  Args:
    trials: from `plan`.
    parallel: number of trials that may run at the same time.
    attached: whether to end like an interrupt when the standard input ends.

  Returns:
    For each trial, 'done' or a description of the failure.
  """
  states = [_before(trial) for trial in trials]
  waiting = collections.deque(i for i, state in enumerate(states) if not state)
  running: dict[int, subprocess.Popen] = {}
  try:
    while waiting or running:
      if attached and select.select([0], [], [], 0.0)[0]:
        raise KeyboardInterrupt
      while waiting and len(running) < parallel:
        i = waiting.popleft()
        try:
          process = start(trials[i])
        except (OSError, ValueError) as error:
          states[i] = _failure(trials[i], error)
        else:
          if process is None:
            states[i] = 'another process is running it'
          else:
            running[i] = process
        _show(f'{trials[i].folder}: {states[i] or "started"}')
      time.sleep(0.1)
      for i in [i for i, p in running.items() if p.poll() is not None]:
        states[i] = _outcome(trials[i], running.pop(i).returncode)
        _show(f'{trials[i].folder}: {states[i]}')
  finally:
    stop(list(running.values()), max(
        [trials[i].grace for i in running], default=0.0) + _MARGIN)
    for i, process in running.items():  # A trial may have come to its end.
      states[i] = _outcome(trials[i], process.returncode)
  return states


def _before(trial: Trial) -> str:
  """Returns the state of a trial before it runs; '' if it is to be run."""
  try:
    return 'done' if trial.finished else ''
  except OSError as error:
    return _failure(trial, error)


def _outcome(trial: Trial, code: int) -> str:
  """Returns the state of a trial whose program has ended."""
  try:
    with paths.explained(trial.folder):
      done = code == 0 and (trial.folder / 'summary.json').exists()
    if done:
      paths.write_whole(trial.folder / 'trial.json', trial.config)
      return 'done'
    lines = (trial.logs / 'log.txt').read_text(errors='replace').split('\n')
  except OSError as error:
    return _failure(trial, error)
  last = next((line for line in reversed(lines) if line.strip()), 'no output')
  return f'failed ({code}): {last.strip()}'


def _failure(trial: Trial, error: Exception) -> str:
  """Returns the state of a trial that an error has ended."""
  file = getattr(error, 'filename', None)
  if not file:  # a sentence already
    return f'failed: {error}'
  fix = ('correct --program' if file == trial.command[0] else
         'check that path, or choose another --workdir')
  return f'failed: {file} cannot be used ({error.strerror}): {fix}.'


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
      usage='python -m jaxrl_llm.launch.run --config=FILE.py [OPTIONS]',
      description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--config', required=True, help='FILE.py or FILE.py:ARG')
  parser.add_argument('--sweep', action='store_true',
                      help="run the trials of the config's get_hyper")
  parser.add_argument('--workdir', help='folder of the trials (default: '
                      "runs/ and the config's name and -sweep)")
  parser.add_argument('--parallel', type=int, default=1, metavar='N',
                      help='trials at a time (default: 1)')
  parser.add_argument('--dry_run', action='store_true',
                      help='print the commands and stop')
  parser.add_argument('--list', action='store_true',
                      help='print the trials as JSON and stop')
  parser.add_argument('--trial', type=int, metavar='N',
                      help='run only this trial, without the table')
  parser.add_argument('--attached', action='store_true', help='end like an '
                      'interrupt when the standard input ends')
  parser.add_argument(
      '--grace', type=float, metavar='SECONDS', help='time for a trial to end '
      'after an interrupt (default: checkpoint.grace of its config)')
  parser.add_argument(
      '--metrics', default='eval/pass@1,eval/pass@8,eval/greedy',
      help='columns of the table (default: %(default)s)')
  parser.add_argument(
      '--program', default=f'{shlex.quote(sys.executable)} -m jaxrl_llm.train',
      help='what to run (default: %(default)s)')
  return parser


def _show_results(
    trials: Sequence[Trial], states: Sequence[str], metrics: Sequence[str],
    file: paths.Path | None) -> None:
  """Shows the table of results, and writes it to a file.

  Raises:
    ValueError: a trial's metrics.jsonl is damaged.
    OSError: the file cannot be written.
  """
  logged = [
      metrics_lib.read(trial.folder / 'metrics.jsonl') for trial in trials]
  table = results.cells(results.rows_of(
      [trial.fields for trial in trials], states, logged, metrics))
  notes = [*results.unmeasured(logged, metrics)]
  results.show_table(table)
  for note in notes:
    _show(note)
  if file:
    paths.write_whole(file, '\n'.join([results.markdown(table), *notes]))
    _show(f'Written to {file}.')


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code."""
  parser = _parser()
  args, rest = parser.parse_known_args(argv)
  workdir = args.workdir or f'runs/{config_lib.name_of(args.config)}-sweep'
  try:
    workdir = own_code.expanded(workdir)
    paths.reachable(workdir)
    _, overrides = config_lib.split(rest)
    trials = plan(
        args.config, sweep=args.sweep, workdir=workdir, overrides=overrides,
        program=shlex.split(args.program),
        hub=not (args.dry_run or args.list))
    if args.grace is not None:
      trials = [trial._replace(grace=args.grace) for trial in trials]
    if args.list:
      _show(json.dumps([
          dict(folder=str(trial.folder), finished=trial.finished)
          for trial in trials]))
      return 0
  except (OSError, ValueError) as error:
    parser.exit(2, f'{error}\n')
  alone = args.trial is not None
  if alone:
    if not 0 <= args.trial < len(trials):
      parser.exit(2, f'--trial={args.trial}: there are {len(trials)} trials, '
                  'counted from 0.\n')
    trials = [trials[args.trial]]
  if args.dry_run:
    for trial in trials:
      done = '# finished: ' if trial.finished else ''
      _show(done + shlex.join(trial.command))
    return 0
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    states = run(trials, max(args.parallel, 1), args.attached)
  except KeyboardInterrupt:
    if not args.attached:  # else the launcher says it
      _show('Interrupted; the same command continues the sweep.')
    return 130
  if alone:
    return int(states != ['done'])
  try:
    _show_results(
        trials, states, args.metrics.split(','),
        paths.place(workdir) / 'sweep.md' if args.sweep else None)
  except (OSError, ValueError) as error:  # a damaged metrics.jsonl, a full disk
    _show(f'{error}')
    return 1
  return int(any(state != 'done' for state in states))


def sweep() -> int:
  """Runs the command line of `jaxrl-sweep`; returns the exit code."""
  return main(['--sweep', *sys.argv[1:]])


if __name__ == '__main__':
  sys.exit(main())
