r"""Runs a config on a TPU slice: makes its VM, sends the code, streams the log.

  python launch/tpu_pod.py --name=math --zone=us-west4-a --type=v5litepod-128 \
      --config=configs/pkpo/gemma2_2b_math.py --workdir=gs://bucket/math --spot

Needs `gcloud`, signed in. Every worker of the slice runs the training program;
they find each other. A preempted VM is made again, and the run goes on from its
last checkpoint, so the workdir must be one that all workers share and that
outlives them. At the end the VM is deleted, unless `--keep` is given or
deletion fails: then the last line says so and how to delete it. `--status`
shows the VMs of a zone. `--dry_run` prints the commands.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from typing import Callable, Iterator, Sequence

from rich import box, console
from rich import table as rich_table

from jaxrl_llm import config as config_lib
from launch import commands, gcloud

_show = console.Console(highlight=False, markup=False, soft_wrap=True).print
_ROOT = pathlib.Path(__file__).resolve().parents[1]
_GONE = ('PREEMPTED', 'TERMINATED', 'FAILED', 'SUSPENDED', 'STOPPED', '')
_LOST = 255  # exit code of ssh when the connection broke
# Seconds after which a command counts as hanging.
_SHORT, _LONG = 180, 3600


class Failed(RuntimeError):
  """A step could not be done; the message is a sentence."""


class Pod:
  """Runs the commands of a job, again and again where that helps.

  Attributes:
    exists: whether the VM, or a request for it, may exist.
  """

  def __init__(
      self, job: gcloud.Job, *, tries: int = 8, backoff: float = 10.0,
      log: io.TextIOBase | None = None, sleep: Callable[[float], None] | None
      = None):
    """Prepares a job.

    Args:
      job: the job.
      tries: failures of a step, one after the other, that end the job.
      backoff: seconds before the second try; doubled from try to try, up to 10
        minutes.
      log: file that gets the output of the program.
      sleep: (seconds) -> None.
    """
    self._job, self._tries, self._backoff = job, tries, backoff
    self._log, self._sleep = log, sleep or time.sleep
    self.exists = False

  def start(self) -> None:
    """Makes the VM and installs the code on it.

    Raises:
      Failed: a step failed too often.
    """
    job = self._job
    state = self._state()
    if state in _GONE and state:
      self.delete()
    if state == 'READY':  # of an earlier launch, which may have left a program
      self.stop()
    if state in _GONE:
      self.exists = True  # a command that fails may have made it all the same
      self._repeat('create', gcloud.create(job), ok=lambda text: (
          'ALREADY_EXISTS' in text or 'already exists' in text))
      _show(f'{job.name}: created')
    self.exists = True
    self._wait()
    with tempfile.TemporaryDirectory() as folder:
      code = pathlib.Path(folder, gcloud.CODE)
      _pack(code)
      self._repeat('copy', gcloud.copy(job, str(code)))
      if job.secrets:
        file = pathlib.Path(folder, gcloud.SECRETS)
        file.touch(0o600)
        file.write_text(''.join(
            f'{name}={shlex.quote(os.environ[name])}\n'
            for name in job.secrets))
        self._repeat('copy of --env', gcloud.copy(job, str(file)))
    self._repeat('setup', gcloud.setup(job), _LONG)
    _show(f'{job.name}: ready')

  def run(self) -> int:
    """Runs the program to its end, also over preemptions.

    Returns:
      Its exit code.

    Raises:
      Failed: a step failed too often.
    """
    self.start()
    losses = 0
    while True:
      code = self._stream(gcloud.program(self._job))
      if code == 0:
        return 0
      state = self._state()
      if state in _GONE:
        _show(f'{self._job.name}: {state.lower() or "gone"}; making it again')
        self.delete()
        self.start()
        losses = 0
      elif code == _LOST and losses < self._tries:
        self._pause(losses)
        losses += 1
        _show(f'{self._job.name}: the connection broke; running again')
        self.stop()  # what it left holds the TPU
      else:
        return code

  def stop(self) -> None:
    """Asks the program to save and end, and waits for it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._call(gcloud.stop(self._job), _SHORT)

  def delete(self) -> None:
    """Deletes the VM.

    Raises:
      Failed: that failed too often.
    """
    if self.exists or self._state():
      self.exists = True
      self._repeat('delete', gcloud.delete(self._job), _LONG,
                   ok=lambda text: 'NOT_FOUND' in text)
      self.exists = False
      _show(f'{self._job.name}: deleted')

  def _wait(self) -> None:
    """Waits until the VM is ready."""
    number = 0
    while (state := self._state()) != 'READY':
      if self._job.queued:
        request = self._call(gcloud.describe(self._job, queued=True), _SHORT)[1]
        if request.strip() in ('FAILED', 'SUSPENDED'):
          raise Failed(
              f'The request for {self._job.type} has {request.strip().lower()}:'
              ' try another zone, or --spot.')
      elif state in _GONE:
        raise Failed(
            f'{self._job.name} is {state.lower() or "gone"} before it was '
            'ready: run the same command again.')
      self._pause(min(number, 2))
      number += 1

  def _state(self) -> str:
    """Returns the state of the VM; '' if there is none."""
    for number in range(self._tries):
      code, text = self._call(gcloud.describe(self._job), _SHORT)
      if not code:
        return text.strip().splitlines()[-1] if text.strip() else ''
      if 'NOT_FOUND' in text or 'not found' in text:
        return ''
      self._pause(number)
    raise Failed(f'The state of {self._job.name} is not known: {_last(text)}')

  def _repeat(
      self, name: str, command: Sequence[str], seconds: float = _LONG,
      ok: Callable[[str], bool] = lambda text: False) -> None:
    """Runs a command until it works."""
    for number in range(self._tries):
      code, text = self._call(command, seconds)
      if not code or ok(text):
        return
      if _hopeless(text):
        break
      if number + 1 < self._tries:
        _show(f'{self._job.name}: {name} failed ({_last(text)}); trying again')
        self._pause(number)
    raise Failed(
        f'{name} of {self._job.name} failed: {_last(text)}')

  def _pause(self, number: int) -> None:
    self._sleep(min(self._backoff * 2 ** number, 600.0))

  def _call(
      self, command: Sequence[str], seconds: float) -> tuple[int, str]:
    """Returns the exit code of a command, and what it printed."""
    try:
      done = subprocess.run(
          command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
          stdin=subprocess.DEVNULL, text=True, errors='replace',
          timeout=seconds)
    except subprocess.TimeoutExpired:
      return 1, f'no answer within {seconds:.0f} s'
    except FileNotFoundError:
      raise Failed(
          'gcloud is not installed: see cloud.google.com/sdk.') from None
    return done.returncode, done.stdout

  def _stream(self, command: Sequence[str]) -> int:
    """Runs the program, and shows and keeps what it prints."""
    hidden = [os.environ[name] for name in self._job.secrets]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, errors='replace',
        start_new_session=True) as process:
      try:
        for line in process.stdout:
          for secret in hidden:
            line = line.replace(secret, '***') if secret else line
          _show(line.rstrip('\n'))
          if self._log:
            self._log.write(line)
            self._log.flush()
      except BaseException:
        with contextlib.suppress(ProcessLookupError):
          os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode


def _last(text: str) -> str:
  """Returns the last line of an output."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return lines[-1][:300] if lines else 'no output'


def _hopeless(text: str) -> bool:
  """Returns whether a failure will not go away."""
  return bool(re.search(
      'PERMISSION_DENIED|INVALID_ARGUMENT|UNAUTHENTICATED|'
      'unrecognized arguments|You do not currently have an active account',
      text))


def _pack(file: pathlib.Path) -> None:
  """Packs the files of the repository that git knows, or all beside it."""
  found = subprocess.run(
      ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
      cwd=_ROOT, capture_output=True, text=True)
  names = found.stdout.split('\0')[:-1] if not found.returncode else [
      'jaxrl_llm', 'configs', 'launch', 'setup.py', 'pyproject.toml',
      'constraints.txt', 'README.md']
  with tarfile.open(file, 'w:gz') as archive:
    for name in names:
      if (_ROOT / name).exists():
        archive.add(_ROOT / name, name)


def status(job: gcloud.Job) -> rich_table.Table:
  """Returns a table of the VMs in a zone.

  Raises:
    Failed: gcloud cannot list them.
  """
  code, text = Pod(job)._call(  # pylint: disable=protected-access
      gcloud.command(job, 'tpu-vm', 'list', '--format=json'), _SHORT)
  if code:
    raise Failed(f'The VMs of {job.zone} cannot be listed: {_last(text)}')
  table = rich_table.Table(box=box.SIMPLE)
  for name in ('name', 'type', 'state', 'health', 'created'):
    table.add_column(name)
  for vm in json.loads(text[text.index('['):]):
    table.add_row(
        vm['name'].rpartition('/')[2], vm.get('acceleratorType', ''),
        vm.get('state', ''), vm.get('health', ''), vm.get('createTime', ''))
  return table


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, gcloud.Job]:
  parser = argparse.ArgumentParser(
      usage='python launch/tpu_pod.py --name=NAME --zone=ZONE --type=TYPE '
      '--config=FILE.py --workdir=gs://BUCKET/RUN [OPTIONS]',
      description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('--zone', required=True, help='such as us-west4-a')
  add('--name', help='of the VM')
  add('--type', help='of the slice, such as v5litepod-128')
  add('--config', help='FILE.py or FILE.py:ARG')
  add('--workdir', help='gs://BUCKET/RUN, or a folder that all workers share')
  add('--project', help="default: that of gcloud's configuration")
  add('--version', help="of the VM's software (default: by the type)")
  add('--spot', action='store_true', help='cheaper, but may be preempted')
  add('--reserved', action='store_true', help='of a reservation')
  add('--queued', action='store_true', help='wait for capacity in a queue')
  add('--env', default='', help='names of environment variables to send, such '
      'as HF_TOKEN,WANDB_API_KEY; their values appear nowhere')
  add('--log', help='file for the output (default: NAME.log)')
  add('--tries', type=int, default=8, help='of each step')
  add('--backoff', type=float, default=10.0, help='seconds before a retry')
  add('--keep', action='store_true', help='do not delete the VM at the end')
  add('--status', action='store_true', help='show the VMs of the zone')
  add('--dry_run', action='store_true', help='print the commands and stop')
  args, rest = parser.parse_known_args(argv)
  secrets = tuple(filter(None, args.env.split(',')))
  try:
    _, overrides = config_lib.split(rest)
    if not args.status:
      for name in ('name', 'type', 'config', 'workdir'):
        if not getattr(args, name):
          raise ValueError(f'--{name} is missing.')
      if args.spot and args.reserved:
        raise ValueError('--spot and --reserved exclude each other.')
      if not re.fullmatch('[a-z]([-a-z0-9]{0,60}[a-z0-9])?', args.name):
        raise ValueError(
            f'--name={args.name} must be lower-case letters, digits and -.')
      for name in secrets:
        if name not in os.environ:
          raise ValueError(f'--env={name} is not in the environment.')
      config_lib.validate(config_lib.load(
          args.config, {**overrides, 'workdir': args.workdir}))
  except (OSError, ValueError) as error:
    parser.exit(2, f'{error}\n')
  return args, gcloud.Job(
      args.name or '', args.zone, args.type or '',
      args.version or gcloud.version(args.type or ''),
      'spot' if args.spot else 'reserved' if args.reserved else 'on_demand',
      args.queued, args.project, [] if args.status else [
          '-m', 'jaxrl_llm.train', *commands.argv(
              args.config, {**overrides, 'workdir': args.workdir},
              ['--process_count=auto'])],
      secrets)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
  """Makes SIGTERM an interrupt, like Ctrl-C."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  before = signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code."""
  args, job = _parse(argv)
  if args.dry_run:
    secrets = [gcloud.copy(job, gcloud.SECRETS)] if job.secrets else []
    for command in (
        gcloud.create(job), gcloud.describe(job),
        gcloud.copy(job, gcloud.CODE), *secrets, gcloud.setup(job),
        gcloud.program(job), gcloud.delete(job)):
      _show(shlex.join(command))
    return 0
  code, pod = 1, None
  try:
    with _interruptible():
      if args.status:
        console.Console().print(status(job))
        return 0
      with open(args.log or f'{job.name}.log', 'a') as log:
        pod = Pod(job, tries=args.tries, backoff=args.backoff, log=log)
        try:
          code = pod.run()
        except KeyboardInterrupt:
          _show('Interrupted; the run is saved on its VM.')
          code = 130
          pod.stop()
      if not args.keep:
        pod.delete()
  except Failed as error:
    _show(f'{error}')
    code = code or 1
    if pod and pod.exists and not args.keep:
      with contextlib.suppress(Failed):
        pod.delete()
  except OSError as error:
    _show(f'{error.filename}: {error.strerror}.')
  except KeyboardInterrupt:
    code = 130
  if pod and pod.exists:
    _show(f'The TPU VM {job.name} in {job.zone} still exists and costs money. '
          f'Delete it with: {shlex.join(gcloud.delete(job))}')
  return code


if __name__ == '__main__':
  sys.exit(main())
