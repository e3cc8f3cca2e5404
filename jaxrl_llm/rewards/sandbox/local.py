"""Executors that start processes on this machine: their common part."""

import contextlib
import dataclasses
import os
import py_compile
import sys
from typing import ContextManager, Mapping, NamedTuple, Sequence

from jaxrl_llm.rewards.sandbox import process
from jaxrl_llm.rewards.sandbox.guest import frames, literals
from jaxrl_llm.rewards.sandbox.protocol import (
  DEFAULTS,
  Limits,
  Outcome,
  Result,
  SandboxError,
  Suite,
)

# A virtual environment's own is a link that needs the environment.
PYTHON = os.path.realpath(getattr(sys, '_base_executable', sys.executable))
_FILES = 256  # open files of a process
_VERDICTS = 64 << 20  # bytes that the checker may write


class Guest(NamedTuple):
  """Task of a process in a sandbox.

  Attributes:
    role: 'run', 'candidate' or 'checker'; see `guest/start.py`.
    files: contents by name, in its private folder; the first is its own.
    arguments: after the descriptors.
    descriptors: that it inherits, to read and to write; () for 'run'.
  """
  role: str
  files: Mapping[str, bytes]
  arguments: Sequence[str] = ()
  descriptors: Sequence[int] = ()


class LocalExecutor:
  """An executor whose subclasses say how a process is started."""

  def __init__(self):
    """Compiles what runs in a sandbox, where nothing can be written."""
    for path in process.GUEST.glob('*.py'):
      with contextlib.suppress(OSError):  # then each program compiles it
        py_compile.compile(str(path))

  def command(self, guest: Guest, folder: str, code: str, limits: Limits,
              processes: int) -> list[str]:
    """Returns the command of a process, as it is in its sandbox.

    Args:
      guest: what it is for.
      folder: its private folder there.
      code: folder of `guest/` there.
      limits: what it may use.
      processes: limit of the user's processes in this sandbox; -1 for none.
    """
    most = map(int, (limits.memory, processes, limits.disk, _FILES))
    return [
        PYTHON, '-s', '-S', '-P', '-B', '-X', 'utf8', '-c', process.START, code,
        guest.role, ','.join(map(str, most)),
        os.path.join(folder, next(iter(guest.files))),
        *map(str, guest.descriptors), *guest.arguments]

  def started(
      self, guest: Guest, stdin: bytes, limits: Limits,
  ) -> ContextManager[process.Process]:
    """Starts a process; what it needed on this machine ends with the context.

    Raises:
      SandboxError: it cannot be started.
    """
    raise NotImplementedError

  def verify(self, ended: process.Process) -> None:
    """Raises SandboxError if not the program has failed, but the sandbox."""

  def run(
      self, program: str, *, stdin: bytes = b'',
      files: Mapping[str, bytes] | None = None,
      limits: Limits = DEFAULTS) -> Result:
    """Runs a program; see `sandbox.Executor`."""
    files = {'program.py': _bytes(program), **(files or {})}
    guest = Guest('run', files, [str(limits.seconds)])
    with self.started(guest, stdin, limits) as one:
      process.watch([one])
      self.verify(one)
      return one.result()

  def check(
      self, program: str, tests: Suite, *,
      limits: Limits = DEFAULTS) -> list[Outcome]:
    """Judges a program; see `sandbox.Executor`."""
    spec = literals.dump(dict(
        tests=list(tests.tests), setup=tests.setup, entries=list(tests.entries),
        seconds=float(limits.seconds), wall=limits.wall / 2), _no_other)
    with contextlib.ExitStack() as stack:
      ends = [stack.enter_context(open(end, mode, buffering=0))
              for _ in range(2) for end, mode in zip(os.pipe(), ('rb', 'wb'))]
      answers, answer, questions, question = [end.fileno() for end in ends]
      checker = stack.enter_context(self.started(
          Guest('checker', {'tests': spec}, (), (answers, question)), b'',
          dataclasses.replace(limits, output=_VERDICTS)))
      candidate = stack.enter_context(self.started(
          Guest('candidate', {'program.py': _bytes(program)},
                (str(limits.seconds),), (questions, answer)), b'', limits))
      # A side whose other side ends must notice.
      for end in ends:
        end.close()
      process.watch([checker, candidate])
      self.verify(checker)
      self.verify(candidate)
      return _outcomes(checker, candidate, len(tests.tests))


def _outcomes(
    checker: process.Process, candidate: process.Process, count: int,
) -> list[Outcome]:
  """Returns the outcomes that the checker wrote, and reasons for the others."""
  channel = frames.Channel(-1, -1, checker.output[1])
  found = []
  try:
    while frame := channel.waiting():
      found.append(Outcome(*literals.load(frame[2], _no_other)))
  except (TypeError, ValueError, frames.Closed):
    pass
  checked, judged = checker.result(), candidate.result()
  # A limit of the program's, whose end is that of all of its tests.
  limit = {'timeout': 'timeout', 'memory': 'memory', 'processes': 'killed'}.get(
      candidate.end or judged.status)
  if checked.status == 'timeout':
    limit = 'timeout'
  if len(found) < count and not limit and checked.status != 'memory':
    raise SandboxError(
        f'the checker failed ({checked.status}): '
        f'{checked.stderr[-300:].decode(errors="replace")}')
  found += [Outcome(limit or 'memory')] * (count - len(found))
  if limit:
    found = [Outcome(limit, o.detail) if o.kind == 'killed' else o
             for o in found]
  return found


def _bytes(program: str) -> bytes:
  """Returns the source as a file; a character of no encoding is a '?'."""
  return program.encode('utf-8', 'replace')


def _no_other(*_: object) -> bytes:
  raise ValueError('not a literal')
