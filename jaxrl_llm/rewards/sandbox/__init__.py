"""Runs programs that a model wrote where they can do no harm.

An executor runs a program in a sandbox:

  bubblewrap.BubblewrapExecutor  namespaces of Linux; the one to use
  unsafe.SubprocessExecutor      a process with limits; stops accidents only
  remote.RemoteExecutor          asks a machine that runs `serve`

`check` judges a program by tests. The verdict never comes from the interpreter
that runs the program: tests run in a second sandbox, see `guest/checker.py`.
docs/sandbox.md says what works where, and what each stops.
"""

import dataclasses
from typing import Any, Mapping, Protocol, Sequence

# Kinds of the outcome of a test, besides 'passed'.
FAULTS = ('wrong', 'syntax_error', 'exception', 'timeout', 'memory', 'killed')


@dataclasses.dataclass(frozen=True)
class Limits:
  """Limits of a program.

  Attributes:
    seconds: processor seconds of the program, or of each of its tests; rounded
      up to whole ones. Other load on the machine does not change a verdict.
    wall: seconds by the clock until the whole tree of processes is killed; of
      each test, a third of it.
    memory: bytes of the address space of a process, and of all processes
      together in memory.
    processes: number of processes and threads.
    disk: bytes of the private folder, and of /tmp.
    output: bytes of standard output, and of standard error.
  """
  seconds: float = 5.0
  wall: float = 30.0
  memory: int = 512 << 20
  processes: int = 64
  disk: int = 16 << 20
  output: int = 1 << 20

  def __post_init__(self):
    for name, value in dataclasses.asdict(self).items():
      if not 0 < value < 2 ** 53:
        raise ValueError(f'The limit {name}={value} must be above 0.')


@dataclasses.dataclass(frozen=True)
class Result:
  """What came of a program.

  Attributes:
    status: 'ok' (exit code 0), 'exit' (another one), 'timeout', 'memory',
      'processes', 'output' (beyond the limit), or 'killed' (by a signal).
    exit_code: of the program; None if a signal or a limit ended it.
    stdout: what it wrote, at most `Limits.output` bytes.
    stderr: the same.
    seconds: by the clock.
    peak_bytes: most memory of all its processes at one time, as seen every 50
      ms; 0 if it ended before the first look.
  """
  status: str
  exit_code: int | None
  stdout: bytes
  stderr: bytes
  seconds: float
  peak_bytes: int


@dataclasses.dataclass(frozen=True)
class Suite:
  """Tests of a program.

  Attributes:
    tests: Python statements, run one by one, each in a process of its own.
    setup: statements before each test.
    entries: names that are the program's even if `setup` defines them too, or
      Python does.
  """
  tests: Sequence[str]
  setup: str = ''
  entries: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Outcome:
  """Outcome of a test.

  Attributes:
    kind: 'passed', or one of FAULTS.
    detail: what happened, for the reader; may be the program's own words.
  """
  kind: str
  detail: str = ''


DEFAULTS = Limits()


class SandboxError(OSError):
  """Raised if a sandbox itself fails, which says nothing of the program."""


class Executor(Protocol):
  """Interface of an executor. It may be used from several threads."""

  def run(
      self, program: str, *, stdin: bytes = b'',
      files: Mapping[str, bytes] | None = None,
      limits: Limits = DEFAULTS) -> Result:
    """Runs a program as `__main__`.

    Args:
      program: Python source.
      stdin: its standard input.
      files: contents by name, in the folder where it runs.
      limits: what it may use.

    Raises:
      SandboxError: the sandbox could not be made.
    """

  def check(
      self, program: str, tests: Suite, *,
      limits: Limits = DEFAULTS) -> list[Outcome]:
    """Judges a program; returns one outcome for each test, in order.

    Raises:
      SandboxError: a sandbox could not be made, or the checker failed.
    """


def make(
    name: str = 'bubblewrap', *, allow_unsafe: bool = False, address: str = '',
    token: str = '') -> Executor:
  """Makes an executor.

  Args:
    name: 'bubblewrap', 'subprocess' or 'remote'.
    allow_unsafe: must be True for 'subprocess'.
    address: of the service, for 'remote', such as http://10.0.0.5:8037.
    token: file with the token of the service, for 'remote'.

  Raises:
    ValueError: the executor is not known, or does not work here; with what to
      do.
  """
  options: dict[str, Any] = {}
  if name == 'bubblewrap':
    from jaxrl_llm.rewards.sandbox.bubblewrap import BubblewrapExecutor as kind
  elif name == 'subprocess':
    from jaxrl_llm.rewards.sandbox.unsafe import SubprocessExecutor as kind
    options = {'allow_unsafe': allow_unsafe}
  elif name == 'remote':
    from jaxrl_llm.rewards.sandbox.remote import RemoteExecutor as kind
    options = {'address': address, 'token_file': token}
  else:
    raise ValueError(
        f'The sandbox {name!r} is not known: use bubblewrap, subprocess or '
        'remote.')
  return kind(**options)
