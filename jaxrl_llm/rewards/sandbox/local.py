"""Executors that start processes on this machine: their common part."""

import compileall
import contextlib
import dataclasses
import os
import re
import socket
import sys
import tempfile
import threading
from typing import ContextManager, Mapping, NamedTuple, Sequence
import weakref

from jaxrl_llm.rewards.sandbox import process
from jaxrl_llm.rewards.sandbox.guest import frames, literals
from jaxrl_llm.rewards.sandbox.protocol import (
  DEFAULTS,
  Outcome,
  ProgramLimits,
  Result,
  SandboxError,
  Suite,
)

# A virtual environment's own is a link that needs the environment.
PYTHON = os.path.realpath(getattr(sys, '_base_executable', sys.executable))
_FILES = 256  # open files of a process
_LIMITS = {'timeout': 'timeout', 'memory': 'memory', 'processes': 'killed'}
_VERDICTS = 64 << 20  # bytes that the checker may write
# A test with such a name may run what a program returns, as if it were its own.
# Its sandbox is not kept.
_CODE = re.compile(
    r'\b(eval|exec|compile|__import__|__builtins__|(get|set|del)attr|globals|'
    r'locals|vars|attrgetter|methodcaller|import_module|importlib|runpy|pickle|'
    r'marshal|shelve|ctypes|subprocess|system|popen)\b')
_READY = 5.0  # seconds until the checker is ready again


class Guest(NamedTuple):
  """Task of a process in a sandbox.

  Attributes:
    role: 'run', 'candidate' or 'checker'; see `guest/start.py`.
    files: contents by name, in its private folder; the first is its own.
    arguments: after the descriptors.
    descriptors: that it inherits: for 'candidate' to read and to write, for
      'checker' a socket.
    kind: of process.
  """
  role: str
  files: Mapping[str, bytes]
  arguments: Sequence[str] = ()
  descriptors: Sequence[int] = ()
  kind: type[process.Process] = process.Process


class _Checker(NamedTuple):
  """A checker, which judges one program after another.

  Attributes:
    service: the process.
    line: socket that takes its jobs; it answers each with a byte.
    limits: that it was started with.
    stack: closes it.
    owner: id of the process that started it.
  """
  service: process.JobProcess
  line: socket.socket
  limits: ProgramLimits
  stack: contextlib.ExitStack
  owner: int


def command(guest: Guest, folder: str, code: str, limits: ProgramLimits,
            processes: int) -> list[str]:
  """Returns the command of a process, as it is in its sandbox.

  Args:
    guest: its task.
    folder: its private folder there.
    code: folder of `guest/` there.
    limits: most time, memory and output.
    processes: limit of the user's processes in this sandbox; -1 for none.
  """
  most = map(int, (limits.memory, processes, limits.disk, _FILES))
  return [
      PYTHON, '-s', '-S', '-P', '-B', '-X', 'utf8', '-c', process.START, code,
      guest.role, ','.join(map(str, most)),
      os.path.join(folder, next(iter(guest.files), '')),
      *map(str, guest.descriptors), *guest.arguments]


class LocalExecutor:
  """An executor whose subclasses say how a process is started.

  Attributes:
    namespace: whether a process sees only those that it has started.
  """

  namespace = False

  def __init__(self):
    """Compiles the guest's files, since a sandbox can write nothing."""
    # Where that fails, each program compiles them.
    compileall.compile_dir(process.GUEST, quiet=2)
    # A thread's own: Linux ends a sandbox with the thread that started it.
    self._own = threading.local()
    weakref.finalize(self, _close, self._own)

  def started(
      self, guest: Guest, stdin: bytes, limits: ProgramLimits,
  ) -> ContextManager[process.Process]:
    """Starts a process; its files on this machine end with the context.

    The context must not hold this object, which may keep a process for long.

    Raises:
      SandboxError: it cannot be started.
    """
    raise NotImplementedError

  def verify(self, ended: process.Process) -> None:
    """Raises SandboxError if not the program has failed, but the sandbox."""

  def run(
      self, program: str, *, stdin: bytes = b'',
      files: Mapping[str, bytes] | None = None,
      limits: ProgramLimits = DEFAULTS) -> Result:
    """Runs a program; see `sandbox.Executor`."""
    files = {'program.py': _bytes(program), **(files or {})}
    guest = Guest('run', files, [str(limits.seconds)])
    with self.started(guest, stdin, limits) as one:
      process.watch([one])
      self.verify(one)
      return one.result()

  def check(
      self, program: str, tests: Suite, *,
      limits: ProgramLimits = DEFAULTS) -> list[Outcome]:
    """Judges a program; see `sandbox.Executor`."""
    spec = literals.dump(dict(
        tests=list(tests.tests), setup=tests.setup, entries=list(tests.entries),
        seconds=float(limits.seconds), wall=limits.wall / 2))
    with contextlib.ExitStack() as stack:
      answers, answer, questions, question, verdicts, verdict = ends = [
          stack.enter_context(open(end, mode, buffering=0))
          for _ in range(3) for end, mode in zip(os.pipe(), ('rb', 'wb'))]
      tests_file = stack.enter_context(tempfile.TemporaryFile())
      tests_file.write(spec)
      tests_file.seek(0)
      checker = self._checker(limits)
      if _CODE.search('\n'.join((tests.setup, *tests.tests))):
        stack.callback(self.close)
      try:
        socket.send_fds(checker.line, [b'.'], [
            end.fileno() for end in (tests_file, answers, question, verdict)])
      except OSError as error:
        raise SandboxError(f'the checker has ended ({error})') from None
      checker.service.begin(
          verdicts, dataclasses.replace(limits, output=_VERDICTS))
      candidate = stack.enter_context(self.started(
          Guest('candidate', {'program.py': _bytes(program)},
                (str(limits.seconds),),
                (questions.fileno(), answer.fileno())), b'', limits))
      # A side whose other side ends must notice.
      for end in ends:
        if end is not verdicts:
          end.close()
      process.watch([checker.service, candidate])
      self.verify(checker.service)
      self.verify(candidate)
      return _outcomes(checker.service, candidate, len(tests.tests))

  def close(self) -> None:
    """Ends the checker that this thread keeps for its next program."""
    _close(self._own)

  def _checker(self, limits: ProgramLimits) -> _Checker:
    """Returns this thread's checker, which is ready, or starts one."""
    if checker := getattr(self._own, 'checker', None):
      with contextlib.suppress(OSError):
        if (checker.limits == limits and checker.owner == os.getpid()
            and checker.line.recv(1) and checker.service.popen.poll() is None):
          return checker
      self.close()
    with contextlib.ExitStack() as stack:
      line, other = socket.socketpair()
      stack.enter_context(line)
      line.settimeout(_READY)
      with other:
        service = stack.enter_context(self.started(
            Guest('checker', {}, (str(int(self.namespace)),),
                  (other.fileno(),), process.JobProcess), b'', limits))
      self._own.checker = _Checker(
          service, line, limits, stack.pop_all(), os.getpid())
    return self._own.checker


def _close(own: threading.local) -> None:
  if checker := own.__dict__.pop('checker', None):
    checker.stack.close()


def _outcomes(
    checker: process.Process, candidate: process.Process, count: int,
) -> list[Outcome]:
  """Returns the outcomes that the checker wrote, and reasons for the others."""
  channel = frames.PipeEnd(-1, -1, checker.output[1])
  found = []
  try:
    while frame := channel.waiting():
      found.append(Outcome(*literals.load(frame[2])))
  except (TypeError, ValueError, frames.Closed):
    pass
  checked, judged = checker.result(), candidate.result()
  # A limit of the program's, or of the tests', whose end is that of all.
  limit = _LIMITS.get(checked.status) or _LIMITS.get(
      candidate.end or judged.status)
  if len(found) < count and not limit:
    raise SandboxError(
        f'the checker has ended before its last test ({checked.status}): '
        f'{checked.stderr[-300:].decode(errors="replace")}')
  found += [Outcome(limit)] * (count - len(found))
  if limit:
    found = [Outcome(limit, o.detail) if o.kind == 'killed' else o
             for o in found]
  return found


def _bytes(program: str) -> bytes:
  """Returns the source as a file; a character of no encoding is a '?'."""
  return program.encode('utf-8', 'replace')
