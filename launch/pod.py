"""A TPU VM of a job: makes it, runs the program on it, deletes it."""

import contextlib
import io
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

from launch import gcloud

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_GONE = ('PREEMPTED', 'TERMINATED', 'FAILED', 'SUSPENDED', 'STOPPED', '')
_GOING = ('DELETING', 'STOPPING')
_LOST = 255  # exit code of ssh when the connection broke
# Seconds after which a command counts as hanging.
SHORT, _LONG = 180.0, 3600.0
_STEADY = 600.0  # seconds of a program after which losses are counted anew


class Failed(RuntimeError):
  """A step could not be done; the message is a sentence."""


class _Preempted(Exception):
  """The VM is gone; the message is its state."""


def show(line: str) -> None:
  """Prints a line, if there is still a terminal or pipe that takes it."""
  try:
    print(line, flush=True)
  except OSError:
    sys.stdout = open(os.devnull, 'w')


class Pod:
  """Runs the commands of a job, again and again where that helps.

  Attributes:
    exists: whether the VM, or a request for it, may exist.
  """

  def __init__(
      self, job: gcloud.Job, *, tries: int = 8, backoff: float = 10.0,
      poll: float = 60.0, grace: float = 0.0, log: io.TextIOBase | None = None):
    """Prepares a job.

    Args:
      job: the job.
      tries: failures of a step, one after the other, that end the job.
      backoff: seconds before the second try; doubled from try to try, up to 10
        minutes.
      poll: seconds between two looks at the state of the VM while the program
        runs; ssh does not always notice that its VM is gone.
      grace: seconds that the program may take to save and end.
      log: file that gets the output of the program.
    """
    self._job, self._tries, self._backoff = job, tries, backoff
    self._poll, self._grace, self._log = poll, grace, log
    self.exists = False

  def run(self) -> int:
    """Makes the VM and runs the program to its end, also over preemptions.

    Returns:
      Its exit code.

    Raises:
      Failed: a step failed too often.
    """
    self._start()
    losses = 0
    while True:
      began = time.monotonic()
      code = self._stream(gcloud.program(self._job))
      if code == 0:
        return 0
      if time.monotonic() > began + _STEADY:
        losses = 0
      state = self._settled()
      if state in _GONE:
        self._remake(state, losses)
        self._start()
      elif code in (_LOST, gcloud.STOPPED) and losses < self._tries:
        show(f'{self._job.name}: ' + (
            'the connection broke' if code == _LOST else
            'the program was asked to stop, and has saved')
            + '; running again')
        self._pause(losses)
        self.stop()  # what it left holds the TPU
      else:
        return code
      losses += 1

  def stop(self) -> None:
    """Asks the program to save and end, and waits for it."""
    self._call(gcloud.stop(self._job), SHORT + self._grace)

  def delete(self) -> None:
    """Deletes the VM.

    Raises:
      Failed: that failed too often.
    """
    if self.exists or self._state():
      self.exists = True
      self._repeat('delete', gcloud.delete(self._job),
                   ok=lambda text: 'NOT_FOUND' in text)
      self.exists = False
      show(f'{self._job.name}: deleted')

  def ask(self, command: Sequence[str]) -> str:
    """Returns what a command printed.

    Raises:
      Failed: it failed.
    """
    code, text = self._call(command, SHORT)
    if code:
      raise Failed(f'{" ".join(command[2:5])} failed: {_last(text)}')
    return text

  def _start(self) -> None:
    """Makes the VM and installs the code on it."""
    for number in range(self._tries):
      try:
        self._make()
        self._install()
      except _Preempted as error:
        self._remake(str(error), number)
      else:
        show(f'{self._job.name}: ready')
        return
    raise Failed(
        f'{self._job.name} was gone {self._tries} times before it was ready: '
        'try another zone.')

  def _make(self) -> None:
    """Makes the VM, or takes that of an earlier launch."""
    job, state = self._job, self._settled()
    if state in _GONE and state:
      self.delete()
    if state == 'READY':  # An earlier launch may have left a program.
      self.stop()
    if state in _GONE:
      self.exists = True  # A command that fails may have made it all the same.
      self._repeat('create', gcloud.create(job), ok=lambda text: (
          'ALREADY_EXISTS' in text or 'already exists' in text))
      show(f'{job.name}: created')
    self.exists = True
    number = 0
    while (state := self._state()) != 'READY':
      if job.queued:
        request = self._call(gcloud.describe(job, queued=True), SHORT)[1]
        if request.strip() in ('FAILED', 'SUSPENDED'):
          raise Failed(
              f'The request for {job.type} has {request.strip().lower()}: try '
              'another zone, or --spot.')
      elif state in _GONE:
        raise _Preempted(state)
      self._pause(min(number, 2))
      number += 1

  def _install(self) -> None:
    """Sends the code and installs it."""
    job = self._job
    with tempfile.TemporaryDirectory() as folder:
      code = pathlib.Path(folder, gcloud.CODE)
      _pack(code)
      self._repeat('copy', gcloud.copy(job, str(code)), ready=True)
      if job.secrets:
        file = pathlib.Path(folder, gcloud.SECRETS)
        file.touch(0o600)
        file.write_text(''.join(
            f'{name}={shlex.quote(os.environ[name])}\n'
            for name in job.secrets))
        self._repeat(
            'copy of --env', gcloud.copy(job, str(file)), ready=True)
    self._repeat('setup', gcloud.setup(job), ready=True)

  def _remake(self, state: str, number: int) -> None:
    """Deletes a VM that is gone, before it is made again."""
    show(f'{self._job.name}: {state.lower() or "gone"}; making it again')
    self.delete()
    if number:
      self._pause(number - 1)

  def _settled(self) -> str:
    """Returns the state of the VM once nothing is being deleted."""
    for number in range(self._tries):
      state = self._state()
      if state not in _GOING:
        return state
      self._pause(number)
    raise Failed(
        f'{self._job.name} stays {state.lower()}: look at it with --status.')

  def _state(self) -> str:
    """Returns the state of the VM; '' if there is none."""
    for number in range(self._tries):
      code, text = self._call(gcloud.describe(self._job), SHORT)
      if not code:
        return text.strip().splitlines()[-1] if text.strip() else ''
      if 'NOT_FOUND' in text or 'not found' in text:
        return ''
      if _hopeless(text):
        break
      self._pause(number)
    raise Failed(f'The state of {self._job.name} is not known: {_last(text)}')

  def _repeat(
      self, name: str, command: Sequence[str], *, ready: bool = False,
      ok: Callable[[str], bool] = lambda text: False) -> None:
    """Runs a command until it works.

    Args:
      name: of the step.
      command: of the step.
      ready: whether it needs the VM; if that is gone, raises _Preempted.
      ok: text of a failed command -> whether it has done its work.
    """
    for number in range(self._tries):
      code, text = self._call(command, _LONG)
      if not code or ok(text):
        return
      if _hopeless(text):
        break
      if ready and (state := self._settled()) in _GONE:
        raise _Preempted(state)
      if number + 1 < self._tries:
        show(f'{self._job.name}: {name} failed ({_last(text)}); trying again')
        self._pause(number)
    raise Failed(f'{name} of {self._job.name} failed: {_last(text)}')

  def _pause(self, number: int) -> None:
    time.sleep(min(self._backoff * 2 ** number, 600.0))

  def _call(
      self, command: Sequence[str], seconds: float) -> tuple[int, str]:
    """Returns the exit code of a command, and what it printed."""
    with _started(command) as process:
      try:
        text, _ = process.communicate(timeout=seconds)
      except subprocess.TimeoutExpired:
        return 1, f'no answer within {seconds:.0f} s'
    return process.returncode, text

  def _stream(self, command: Sequence[str]) -> int:
    """Runs the program, and shows and keeps what it prints.

    Returns:
      Its exit code; that of a lost connection if the VM was gone.
    """
    hidden = [os.environ[name] for name in self._job.secrets]
    ended, gone = threading.Event(), threading.Event()

    def watch():
      while not ended.wait(self._poll):
        with contextlib.suppress(Failed):
          if self._state() in _GONE and not ended.is_set():
            gone.set()
            _kill(process)
            return

    with _started(command) as process:
      watcher = threading.Thread(target=watch, daemon=True)
      watcher.start()
      try:
        for line in process.stdout:
          for secret in hidden:
            line = line.replace(secret, '***') if secret else line
          show(line.rstrip('\n'))
          self._keep(line)
        process.wait()
      finally:
        ended.set()
    return _LOST if gone.is_set() else process.returncode

  def _keep(self, line: str) -> None:
    """Writes a line to the log; a full disk ends the log, not the run."""
    if self._log:
      try:
        self._log.write(line)
        self._log.flush()
      except OSError as error:
        show(f'The log ends here: {error.strerror}.')
        self._log = None


@contextlib.contextmanager
def _started(command: Sequence[str]) -> Iterator[subprocess.Popen]:
  """Starts a command in a session of its own, and kills what is left of it."""
  try:
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, errors='replace',
        start_new_session=True)
  except FileNotFoundError:
    raise Failed('gcloud is not installed: see cloud.google.com/sdk.') from None
  with process:
    try:
      yield process
    finally:
      if process.poll() is None:
        _kill(process)


def _kill(process: subprocess.Popen) -> None:
  """Kills a command and what it started."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)


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
