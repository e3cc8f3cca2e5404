"""A TPU VM of a job: makes it, runs the program on it, deletes it."""

import contextlib
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Callable, Iterator, NamedTuple, Sequence

from jaxrl_llm.launch import archive, commands, gcloud

_GONE = ('PREEMPTED', 'TERMINATED', 'FAILED', 'SUSPENDED', 'STOPPED', '')
_GOING = ('DELETING', 'STOPPING')
_LOST = 255  # exit code of ssh when the connection broke
# Lines of the program and of gcloud after which another try may succeed.
_LOSSES = ('goes on from the last checkpoint', 'Retrying: SSH command error')
# Seconds after which a command counts as hanging.
_SHORT, _LONG = 180.0, 3600.0
_STEADY = 600.0  # seconds of a program after which losses are counted anew
_SECRET = 4  # characters of a text that is hidden


class Failed(RuntimeError):
  """A step could not be done; the message is a sentence."""


class _Preempted(Exception):
  """The VM is gone; the message is its state."""


class _Answer(NamedTuple):
  """Exit code of a command, its output, and that with its errors."""
  code: int
  out: str
  text: str


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
      poll: float = 60.0, grace: float = 0.0, log: io.RawIOBase | None = None):
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
    self._hidden = sorted({
        line for name in job.secrets for line in (
            os.environ[name], *os.environ[name].splitlines())
        if len(line) >= _SECRET}, key=len, reverse=True)
    self.exists = False

  def run(self) -> int:
    """Makes the VM and runs the program to its end, also over preemptions.

    Returns:
      Its exit code.

    Raises:
      Failed: a step failed too often.
    """
    with tempfile.TemporaryDirectory() as folder:
      files = archive.pack(self._job, pathlib.Path(folder))
      self._start(files)
      losses = 0
      while True:
        began = time.monotonic()
        code, lost = self._stream(gcloud.program(self._job))
        if code == 0:
          return 0
        if time.monotonic() > began + _STEADY:
          losses = 0
        state = self._settled()
        if lost and code != _LOST and state not in _GONE:
          # The program may notice that a host is gone before its VM shows it.
          time.sleep(self._poll)
          state = self._settled()
        if state in _GONE:
          self._remake(state, losses)
          self._start(files)
        elif not lost and code != commands.STOPPED:
          return code
        elif losses >= self._tries:
          raise Failed(
              f'{self._job.name}: the program was cut off {losses + 1} times, '
              f'the last time with exit code {code}: look at its output.')
        else:
          self._again(code, losses)
        losses += 1

  def _again(self, code: int, losses: int) -> None:
    """Prepares another run on the same VM."""
    reason = {
        _LOST: 'the connection broke',
        commands.STOPPED: 'the program was asked to stop, and has saved'}.get(
            code, 'a worker was lost')
    self.show(f'{self._job.name}: {reason}; running again')
    self._pause(losses)
    self.stop()  # what it left holds the TPU

  def show(self, line: str) -> None:
    """Prints a line and keeps it in the log, without secrets."""
    for secret in self._hidden:
      line = line.replace(secret, '***')
    show(line)
    if self._log:
      try:
        self._log.write(f'{line}\n'.encode(errors='replace'))
      except OSError as error:  # A full disk ends the log, not the run.
        show(f'The log ends here: {error.strerror}.')
        self._log = None

  def stop(self) -> None:
    """Asks the program to save and end, and waits for it."""
    self._call(gcloud.stop(self._job), _SHORT + self._grace)

  def delete(self) -> None:
    """Deletes the VM.

    Raises:
      Failed: that failed too often.
    """
    job = self._job
    if self.exists or self._state():
      self.exists = True
      missing = lambda text: 'NOT_FOUND' in text
      if job.queued:
        self._repeat('delete', gcloud.delete(job, queued=True), ok=missing)
      # Without a request, the VM may be one of an earlier launch.
      if not job.queued or self._settled():
        self._repeat('delete', gcloud.delete(job), ok=missing)
      self.exists = False
      self.show(f'{job.name}: deleted')

  def ask(self, command: Sequence[str]) -> str:
    """Returns what a command printed.

    Raises:
      Failed: it failed.
    """
    found = self._call(command, _SHORT)
    if found.code:
      raise Failed(f'{" ".join(command[2:5])} failed: {_last(found.text)}')
    return found.out

  def _start(self, files: Sequence[pathlib.Path]) -> None:
    """Makes the VM and installs the code on it."""
    for number in range(self._tries):
      try:
        self._make()
        for file in files:
          self._repeat(
              'copy', gcloud.copy(self._job, str(file)), ready=True)
        self._repeat('setup', gcloud.setup(self._job), ready=True)
      except _Preempted as error:
        self._remake(str(error), number)
      else:
        self.show(f'{self._job.name}: ready')
        return
    raise Failed(
        f'{self._job.name} was gone {self._tries} times before it was ready: '
        'try another zone.')

  def _make(self) -> None:
    """Makes the VM, or takes that of an earlier launch."""
    job, state, asked = self._job, self._settled(), False
    if state in _GONE and state:
      self.delete()
    if state == 'READY':  # An earlier launch may have left a program.
      self.stop()
    if state in _GONE:
      self.exists = True  # A command that fails may have made it all the same.
      asked = self._repeat('create', gcloud.create(job), ok=lambda text: (
          'ALREADY_EXISTS' in text or 'already exists' in text))
      self.show(f'{job.name}: {"created" if asked else "there already"}')
    self.exists = True
    self._wait(asked)

  def _wait(self, asked: bool) -> None:
    """Waits until the VM is ready.

    Args:
      asked: whether this launch asked for it: a request that has failed is else
        one of an earlier launch, and is made again.
    """
    job, shown, last = self._job, None, time.monotonic() + _LONG
    number = 0
    while (state := self._state()) != 'READY':
      request = ''
      if job.queued:
        found = self._call(gcloud.describe(job, queued=True), _SHORT)
        request = _word(found.out)
        if request == 'FAILED' and asked:
          raise Failed(
              f'The request for {job.type} has failed: try another zone, or '
              '--spot.')
        if request in ('FAILED', 'SUSPENDING', 'SUSPENDED'):
          raise _Preempted(request)
        if found.code and 'NOT_FOUND' in found.text and not state:
          raise _Preempted('')
      if state in _GONE and (state or not job.queued):
        raise _Preempted(state)
      if not job.queued and time.monotonic() > last:
        raise Failed(
            f'{job.name} has been {state.lower()} for {_LONG / 60:.0f} '
            'minutes: try another zone.')
      if (state, request) != shown:
        shown = state, request
        self.show(f'{job.name}: {(state or request).lower() or "asked for"}')
      self._pause(min(number, 2))
      number += 1

  def _remake(self, state: str, number: int) -> None:
    """Deletes a VM that is gone, before it is made again."""
    self.show(f'{self._job.name}: {state.lower() or "gone"}; making it again')
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
      found = self._call(gcloud.describe(self._job), _SHORT)
      if not found.code:
        return _word(found.out)
      if 'NOT_FOUND' in found.text or 'not found' in found.text:
        return ''
      if _hopeless(found.text):
        break
      self._pause(number)
    raise Failed(
        f'The state of {self._job.name} is not known ({_last(found.text)}): '
        'see --status.')

  def _repeat(
      self, name: str, command: Sequence[str], *, ready: bool = False,
      ok: Callable[[str], bool] = lambda text: False) -> bool:
    """Runs a command until it works.

    Args:
      name: of the step.
      command: of the step.
      ready: whether it needs the VM; if that is gone, raises _Preempted.
      ok: text of a failed command -> whether it has done its work.

    Returns:
      Whether it worked; else its work had been done before.
    """
    for number in range(self._tries):
      code, _, text = self._call(command, _LONG)
      if not code or ok(text):
        return not code
      if _hopeless(text):
        break
      if ready and (state := self._settled()) in _GONE:
        raise _Preempted(state)
      if number + 1 < self._tries:
        self.show(
            f'{self._job.name}: {name} failed ({_last(text)}); trying again')
        self._pause(number)
    raise Failed(f'{name} of {self._job.name} failed: {_last(text)}')

  def _pause(self, number: int) -> None:
    time.sleep(min(self._backoff * 2 ** number, 600.0))

  def _call(self, command: Sequence[str], seconds: float) -> _Answer:
    """Runs a command, for some seconds at most."""
    with _started(command, subprocess.PIPE) as process:
      try:
        out, err = process.communicate(timeout=seconds)
      except subprocess.TimeoutExpired:
        return _Answer(1, '', f'no answer within {seconds:.0f} s')
    return _Answer(process.returncode, out, f'{out}\n{err}')

  def _stream(self, command: Sequence[str]) -> tuple[int, bool]:
    """Runs the program, and shows and keeps what it prints.

    Returns:
      Its exit code, and whether another try may succeed: the connection or a
      worker was lost.
    """
    ended, gone, lost = threading.Event(), threading.Event(), False

    def watch():
      while not ended.wait(self._poll):
        with contextlib.suppress(Failed):
          if self._state() in _GONE and not ended.is_set():
            gone.set()
            _kill(process)
            return

    with _started(command, subprocess.STDOUT) as process:
      watcher = threading.Thread(target=watch, daemon=True)
      watcher.start()
      try:
        for line in process.stdout:
          lost |= any(text in line for text in _LOSSES)
          self.show(line.rstrip('\n'))
        process.wait()
      finally:
        ended.set()
    code = _LOST if gone.is_set() else process.returncode
    return code, lost or code == _LOST


@contextlib.contextmanager
def _started(command: Sequence[str], errors: int) -> Iterator[subprocess.Popen]:
  """Starts a command in a session of its own, and kills what is left of it."""
  try:
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors,
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


def _word(text: str) -> str:
  """Returns the last line that is one word, as a state; '' if there is none."""
  words = re.findall(r'^\s*([A-Za-z_]+)\s*$', text, re.M)
  return words[-1].upper() if words else ''


def _hopeless(text: str) -> bool:
  """Returns whether a failure will not go away."""
  return bool(re.search(
      'PERMISSION_DENIED|INVALID_ARGUMENT|UNAUTHENTICATED|'
      'unrecognized arguments|You do not currently have an active account',
      text))
