r"""Runs a config, or its sweep, as an XManager experiment.

  python3 -m venv xm
  xm/bin/pip install -c launch/xm_constraints.txt xmanager
  xm/bin/python launch/xm.py --config=configs/countdown.py --sweep \
      --workdir=runs/sweep --parallel=2 --config.steps=100

XManager needs an older protobuf than this package, so it has an environment of
its own; the runs use that of `--python`. A trial is a work unit. On this
machine it needs no docker; the same command, run again, skips finished trials
and resumes the others, as `launch/run.py` does. Ctrl-C lets the trials save and
end, and waits for them; Ctrl-C again does not wait.

With `--tpu` and `--zone` each trial gets a TPU slice of its own by
`launch/tpu_pod.py`: XManager's Vertex executor knows only TPU v2 and v3
(google-deepmind/xmanager#63). Options after `--` go to tpu_pod.py, such as
-- --spot --project=mine.
"""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
from typing import Any, Sequence
import zlib

_HERE = pathlib.Path(__file__).resolve().parent
# In a checkout; an installed package is found without it.
_PATH = ({'PYTHONPATH': str(_HERE.parent)}
         if (_HERE.parent / 'jaxrl_llm').exists() else {})
_POD_GRACE = 3600  # seconds in which a TPU slice is saved and deleted


def work_units(
    trials: Sequence[dict[str, Any]], rest: Sequence[str], *,
    python: str = 'python', tpu: str | None = None, zone: str | None = None,
    pod: Sequence[str] = ()) -> dict[int, list[str]]:
  """Returns the arguments of Python for each trial that is not finished.

  Args:
    trials: as `launch/run.py --list` prints them.
    rest: arguments of `launch/run.py`.
    python: command of Python.
    tpu: type of a TPU slice; None for this machine.
    zone: of the slice.
    pod: other arguments of `launch/tpu_pod.py`.
  """
  units = {}
  for number, trial in enumerate(trials):
    if trial['finished']:
      continue
    units[number] = ['-m', 'jaxrl_llm.launch.run', *rest, f'--trial={number}']
    if tpu:
      units[number] += [f'--grace={_POD_GRACE}', '--program=' + shlex.join([
          python, '-m', 'jaxrl_llm.launch.tpu_pod',
          f'--name={vm_name(trial["folder"])}', f'--zone={zone}',
          f'--type={tpu}', *pod])]
  return units


def vm_name(folder: str) -> str:
  """Returns the name of a trial's VM: other folders give other names."""
  last = re.sub('[^a-z0-9]+', '-', pathlib.PurePath(folder).name.lower())
  return f'xm-{zlib.crc32(folder.encode()):08x}-{last}'[:60].strip('-')


class _Leash:
  """Ends the trials when it is pulled, or when this process dies.

  It is a pipe whose other end is their standard input; see `--attached` of
  `launch/run.py`. XManager itself ends only their shells.

  Attributes:
    pulled: whether the trials were told to end.
  """

  def __init__(self):
    self.pulled = False
    end, self._held = os.pipe()
    os.dup2(end, 0)
    os.close(end)

  def pull(self) -> None:
    """Lets the trials save and end; the second time, leaves them alone."""
    if self.pulled:
      _say('The trials save and end by themselves.')
      os._exit(130)
    self.pulled = True
    os.close(self._held)
    _say('Interrupted: the trials save and end.')


def _say(text: str) -> None:
  with contextlib.suppress(OSError):  # The terminal may be closed.
    print(text, flush=True)


def _heeded() -> list[signal.Signals]:
  """Returns the signals that interrupt, without those that are ignored."""
  return [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
          if signal.getsignal(number) != signal.SIG_IGN]  # by nohup


async def _run(
    experiment: Any, units: dict[int, list[str]], python: str,
    parallel: int, leash: _Leash) -> dict[int, str]:
  """Runs the work units, some at a time; returns the failures."""
  from xmanager import xm, xm_local
  free, failures = asyncio.Semaphore(parallel), {}
  executor = xm_local.Local()
  executable, = experiment.package([
      xm.binary(executor_spec=executor.Spec(), path=python)])

  async def one(number, argv):
    async with free:  # XManager itself starts all at once
      if leash.pulled:
        return
      job = xm.Job(
          executable=executable, executor=executor, args=[*argv, '--attached'],
          env_vars=_PATH)
      unit = await experiment.add(job)
      try:
        await unit.wait_until_complete()
      except xm.ExperimentUnitError as error:
        failures[number] = f'{error}'

  await asyncio.gather(*(one(*unit) for unit in units.items()))
  return failures


def _experiment(
    title: str, units: dict[int, list[str]], python: str, parallel: int,
    leash: _Leash) -> dict[int, str]:
  """Runs the work units as an experiment; returns the failures."""
  from absl import flags, logging
  from xmanager import xm_local
  flags.FLAGS(['xm.py'])
  failures = {}

  async def experiment():
    for number in _heeded():
      asyncio.get_running_loop().add_signal_handler(number, leash.pull)
    try:
      async with xm_local.create_experiment(title) as made:
        failures.update(await _run(made, units, python, parallel, leash))
        if failures:  # At its end, XManager logs and raises them once more.
          logging.set_verbosity(logging.FATAL)
    except RuntimeError:
      if not failures:
        raise

  asyncio.run(experiment())
  return failures


def _parse(
    argv: Sequence[str]) -> tuple[argparse.Namespace, list[str], list[str]]:
  parser = argparse.ArgumentParser(
      usage=f'xm/bin/python {_HERE}/xm.py --config=FILE.py [OPTIONS]',
      description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('--config', required=True, help='FILE.py or FILE.py:ARG')
  add('--sweep', action='store_true',
      help="run the trials of the config's get_hyper")
  add('--workdir', help='folder of the trials')
  add('--parallel', type=int, default=1, help='trials at a time (default: 1)')
  add('--python', default=str(_HERE.parent / '.venv/bin/python'),
      help='Python that has this package (default: %(default)s)')
  add('--title', help="of the experiment (default: the config's file)")
  add('--tpu', help='type of a TPU slice for each trial, such as v5litepod-8')
  add('--zone', help='of the slices')
  add('--dry_run', action='store_true',
      help='print the command of each work unit and stop')
  argv, pod = (
      (argv[:argv.index('--')], argv[argv.index('--') + 1:])
      if '--' in argv else (argv, []))
  args, rest = parser.parse_known_args(argv)
  if bool(args.tpu) != bool(args.zone):
    parser.error('--tpu and --zone need each other.')
  if pod and not args.tpu:
    parser.error('options after -- are for --tpu.')
  rest = [f'--config={args.config}', *['--sweep'] * args.sweep, *(
      [f'--workdir={args.workdir}'] if args.workdir else []), *rest]
  return args, rest, pod


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code."""
  args, rest, pod = _parse(list(sys.argv[1:] if argv is None else argv))
  for number in _heeded():
    signal.signal(number, signal.default_int_handler)
  try:
    code = _launch(args, rest, pod)
  except KeyboardInterrupt:
    code = 130
  if code == 130:
    _say('Interrupted; the same command continues the sweep.')
  return code


def _launch(
    args: argparse.Namespace, rest: Sequence[str], pod: Sequence[str]) -> int:
  """Runs the trials that are not finished; returns the exit code."""
  if not args.dry_run:
    try:
      import xmanager.xm_local  # noqa: F401
    except ImportError:
      sys.stderr.write(
          'XManager is not installed. It needs an environment of its own: '
          'python3 -m venv xm && xm/bin/pip install -c '
          f'{_HERE}/xm_constraints.txt xmanager, then xm/bin/python '
          f'{_HERE}/xm.py. Or use python -m jaxrl_llm.launch.run.\n')
      return 2
  python = os.path.abspath(args.python)
  env = {**os.environ, **_PATH}
  try:
    found = subprocess.run(
        [python, '-m', 'jaxrl_llm.launch.run', *rest, '--list'], env=env,
        stdout=subprocess.PIPE, text=True,
        start_new_session=True)  # An interrupt is for this process.
  except OSError as error:
    sys.stderr.write(
        f'--python={args.python}: {error.strerror}: name the Python that has '
        'this package.\n')
    return 2
  if found.returncode:
    return found.returncode
  trials = json.loads(found.stdout)
  units = work_units(
      trials, rest, python=python, tpu=args.tpu, zone=args.zone, pod=pod)
  if args.dry_run:
    for unit in units.values():
      print(shlex.join([python, *unit]))
    return 0
  leash = _Leash()
  failures = _experiment(
      args.title or pathlib.PurePath(args.config).stem, units, python,
      max(args.parallel, 1), leash)
  if leash.pulled:
    return 130
  print(f'{len(trials)} trials: {len(trials) - len(units)} were finished, '
        f'{len(units) - len(failures)} are done, {len(failures)} failed.')
  for number, error in sorted(failures.items()):
    print(f'{trials[number]["folder"]}: {error}')
  if args.sweep:
    # The table of results; nothing is left to run.
    return subprocess.run(
        [python, '-m', 'jaxrl_llm.launch.run', *rest], env=env).returncode if (
            not failures) else 1
  return int(bool(failures))


if __name__ == '__main__':
  sys.exit(main())
