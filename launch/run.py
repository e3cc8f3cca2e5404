r"""Runs a config, or every trial of its sweep, on this machine.

  python launch/run.py --config=configs/countdown.py --sweep \
      --workdir=runs/sweep --parallel=2 --config.steps=100

With `--sweep`, the trials come from the config's `get_hyper`; `--config.x=y`
sets a field for all of them. Each trial is a process with its own folder, and
its output goes to log.txt there. The same command, run again, skips finished
trials and resumes the others. `--dry_run` only prints the commands. At the end,
a table shows the results; that of a sweep is also in sweep.md beside the
trials.
"""

import argparse
import collections
import difflib
import fcntl
import json
import os
import pathlib
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from typing import Any, Iterator, NamedTuple, Sequence

from rich import box, console
from rich import table as rich_table

from jaxrl_llm import config as config_lib
from jaxrl_llm.config import files as config_files
from jaxrl_llm.monitoring import metrics as metrics_lib
from jaxrl_llm.storage import paths
from jaxrl_llm.tasks import modules
from launch import commands, hyper

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
    """True if the folder has the summary of a run with exactly this config."""
    note = self.folder / 'trial.json'
    return ((self.folder / 'summary.json').exists() and note.exists()
            and note.read_text() == self.config)


def plan(
    spec: str, *, sweep: bool, workdir: str, overrides: dict[str, str],
    program: Sequence[str]) -> list[Trial]:
  """Makes the trials and validates their configs.

  Args:
    spec: config file, as for `config.load`.
    sweep: whether to take the trials from the config's `get_hyper`; if False,
      there is one trial.
    workdir: parent folder of the trials' folders.
    overrides: fields set on the command line, for all trials.
    program: the training command.

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
          f'{twice[0]} is set for each trial: remove --config.{twice[0]}.')
    content = ','.join(
        f'{name.split(".")[-1]}={config_lib.to_text(value)}'
        for name, value in fields.items())
    name = re.sub(r'[^\w.,=+-]+', '_', f'{number:03d}-{content}').strip('-')
    folder = paths.place(workdir) / name[:100]
    given = {**overrides, **fields, 'workdir': str(folder)}
    config = config_lib.load(spec, given)
    config_lib.validate(config)
    command = [*program, *commands.argv(spec, given)]
    trials.append(Trial(
        folder, fields, config_lib.to_json(config), command,
        config.checkpoint.grace))
  return trials


def start(trial: Trial) -> subprocess.Popen | None:
  """Starts a trial; returns None if another runner's process still runs it."""
  trial.logs.mkdir(parents=True, exist_ok=True)
  with open(trial.logs / 'log.txt', 'ab') as log:
    try:
      # The child inherits the lock with the log file, and holds it to its end.
      fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      return None
    (trial.folder / 'summary.json').unlink(missing_ok=True)
    paths.write_whole(trial.folder / 'trial.json', trial.config)
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


def run(trials: Sequence[Trial], parallel: int) -> list[str]:
  """Runs the trials that are not finished, `parallel` at a time.

  A failed trial does not stop the others. An interrupt also ends the running
  trials.

  Returns:
    For each trial, 'done' or a description of the failure.
  """
  states = ['done' if trial.finished else '' for trial in trials]
  waiting = collections.deque(i for i, state in enumerate(states) if not state)
  running: dict[int, subprocess.Popen] = {}
  try:
    while waiting or running:
      while waiting and len(running) < parallel:
        i = waiting.popleft()
        process = start(trials[i])
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
  return states


def _outcome(trial: Trial, code: int) -> str:
  if code == 0 and trial.finished:
    return 'done'
  lines = (trial.logs / 'log.txt').read_text(errors='replace').split('\n')
  last = next((line for line in reversed(lines) if line.strip()), 'no output')
  return f'failed ({code}): {last.strip()}'


def results(
    trials: Sequence[Trial], states: Sequence[str], metrics: Sequence[str],
) -> list[dict[str, str]]:
  """Returns the rows of the final table, each a dictionary of column to text.

  The columns are the trial's number, the fields that differ between trials,
  the state, the last step, and each metric's last and best (highest) value.
  Trials that differ only in their seed also get a row of means and standard
  deviations.
  """
  names = dict.fromkeys(name for trial in trials for name in trial.fields)
  differs = [
      name for name in names
      if len({repr(trial.fields.get(name)) for trial in trials}) > 1]
  rows, groups = [], collections.defaultdict(list)
  for i, (trial, state) in enumerate(zip(trials, states)):
    logged = metrics_lib.read(trial.folder / 'metrics.jsonl')
    fields = {
        name: config_lib.to_text(trial.fields.get(name)) for name in differs}
    numbers = {}
    for metric in metrics:
      values = [
          row[metric] for row in logged if row.get(metric) is not None]
      if values:
        numbers |= {metric: values[-1], f'{metric} best': max(values)}
    rows.append({
        'trial': str(i), **fields, 'state': state.partition(':')[0],
        'step': str(logged[-1].get('step', '')) if logged else '',
        **{k: f'{v:.4g}' for k, v in numbers.items()}})
    groups[tuple((k, v) for k, v in fields.items() if k != 'seed')].append(
        numbers)
  for fields, members in groups.items():
    if len(members) > 1:
      shared = set.intersection(*(set(member) for member in members))
      rows.append({'trial': f'mean of {len(members)}', **dict(fields), **{
          k: _spread([m[k] for m in members])
          for k in members[0] if k in shared}})
  return rows


def _spread(values: Sequence[float]) -> str:
  return f'{statistics.fmean(values):.4g} ± {statistics.stdev(values):.2g}'


def unmeasured(
    trials: Sequence[Trial], metrics: Sequence[str]) -> Iterator[str]:
  """Yields a sentence for each metric that no trial has measured."""
  known = {name for trial in trials
           for row in metrics_lib.read(trial.folder / 'metrics.jsonl')
           for name, value in row.items() if value is not None}
  for metric in metrics:
    if known and metric not in known:
      near = difflib.get_close_matches(metric, sorted(known), 3, 0.3)
      yield (f'No trial has measured {metric}: choose with --metrics, for '
             f'example {", ".join(near or sorted(known)[:3])}.')


def short(names: Sequence[str]) -> list[str]:
  """Drops the sections of each name that stays unique without them."""
  tails = [re.split(r'[./](?=[^./]*$)', name)[-1] for name in names]
  return [tail if tails.count(tail) == 1 else name
          for tail, name in zip(tails, names)]


def cells(rows: Sequence[dict[str, str]]) -> list[list[str]]:
  """Returns the lines of the table: its head, then the rows.

  It has the columns that occur, without the sections of their names.
  """
  columns = [*dict.fromkeys(name for row in rows for name in row)]
  return [short(columns), *(
      [row.get(name, '') for name in columns] for row in rows)]


def show_table(lines: Sequence[Sequence[str]]) -> None:
  """Prints the table; on a narrow screen, in parts that fit without cuts."""
  out = console.Console(highlight=False, markup=False)
  names, *columns = zip(*lines)
  part = [names]
  for column in columns:
    # With up to three characters between columns.
    if sum(_narrowest(c) + 3 for c in (*part, column)) > out.width:
      out.print(_table(part))
      part = [names]
    part.append(column)
  out.print(_table(part))


def _table(columns: Sequence[Sequence[str]]) -> rich_table.Table:
  table = rich_table.Table(
      box=box.SIMPLE, collapse_padding=True, pad_edge=False)
  for column in columns:
    table.add_column(column[0], min_width=_narrowest(column))
  for row in [*zip(*columns)][1:]:
    table.add_row(*row)
  return table


def _narrowest(column: Sequence[str]) -> int:
  """Returns the least width of a column that cuts no word."""
  return max(len(word) for cell in column for word in cell.split())


def markdown(lines: Sequence[Sequence[str]]) -> str:
  """Returns the table as Markdown."""
  head, *rows = ([cell.replace('|', '\\|') for cell in line]
                 for line in lines)
  return ''.join(f'| {" | ".join(line)} |\n' for line in (
      head, ['---'] * len(head), *rows))


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code."""
  parser = argparse.ArgumentParser(
      usage='python launch/run.py --config=FILE.py [OPTIONS]',
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
  parser.add_argument(
      '--grace', type=float, metavar='SECONDS', help='time for a trial to end '
      'after an interrupt (default: checkpoint.grace of its config)')
  parser.add_argument(
      '--metrics', default='eval/pass@1,eval/pass@8,eval/greedy',
      help='columns of the table (default: %(default)s)')
  parser.add_argument(
      '--program', default=f'{shlex.quote(sys.executable)} -m jaxrl_llm.train',
      help='what to run (default: %(default)s)')
  args, rest = parser.parse_known_args(argv)
  workdir = args.workdir or f'runs/{config_lib.name_of(args.config)}-sweep'
  try:
    workdir = modules.expanded(workdir)
    _, overrides = config_lib.split(rest)
    trials = plan(
        args.config, sweep=args.sweep, workdir=workdir, overrides=overrides,
        program=shlex.split(args.program))
    if args.grace is not None:
      trials = [trial._replace(grace=args.grace) for trial in trials]
  except (OSError, ValueError) as error:
    parser.exit(2, f'{error}\n')
  if args.list:
    _show(json.dumps([dict(
        folder=str(trial.folder), finished=trial.finished,
        argv=trial.command[len(shlex.split(args.program)):])
                      for trial in trials]))
    return 0
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
    states = run(trials, max(args.parallel, 1))
  except KeyboardInterrupt:
    _show('Interrupted; the same command continues the sweep.')
    return 130
  if alone:
    return int(states != ['done'])
  metrics = args.metrics.split(',')
  try:
    table = cells(results(trials, states, metrics))
    notes = [*unmeasured(trials, metrics)]
    show_table(table)
    for note in notes:
      _show(note)
    if args.sweep:
      file = paths.place(workdir) / 'sweep.md'
      paths.write_whole(file, '\n'.join([markdown(table), *notes]))
      _show(f'Written to {file}.')
  except (OSError, ValueError) as error:  # a damaged metrics.jsonl, a full disk
    _show(f'{error}')
    return 1
  return int(any(state != 'done' for state in states))


if __name__ == '__main__':
  sys.exit(main())
