"""Arguments and results of executors, and their interface."""

import dataclasses
from typing import Mapping, Protocol, Sequence


@dataclasses.dataclass(frozen=True)
class ProgramLimits:
  """Limits of a program.

  Attributes:
    seconds: processor seconds of the program, or of each of its tests; rounded
      up to whole ones. So other load on the machine does not change a verdict,
      unless `wall` is reached first.
    wall: seconds by the clock until the whole tree of processes is killed; of
      each test, half of it.
    memory: bytes of the address space of a process, and of all processes
      together in memory.
    processes: number of processes and threads.
    disk: bytes of the private folder, and of /tmp.
    output: bytes of standard output, and of standard error.
  """
  seconds: float = 10.0
  wall: float = 60.0
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
  """Result of a program.

  Attributes:
    status: 'ok' (exit code 0), 'exit' (another one), 'timeout', 'memory',
      'processes', 'output' (beyond the limit), or 'killed' (by a signal).
    exit_code: of the program; None if a signal or a limit ended it.
    stdout: its output, at most `ProgramLimits.output` bytes.
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
    kind: 'passed', 'wrong', 'syntax_error', 'exception', 'timeout', 'memory' or
      'killed'.
    detail: a message for the reader; may be the program's own words.
  """
  kind: str
  detail: str = ''


DEFAULTS = ProgramLimits()


class SandboxError(OSError):
  """Raised if a sandbox itself fails, which says nothing of the program."""


class Executor(Protocol):
  """Interface of an executor. It may be used from several threads."""

  def run(
      self, program: str, *, stdin: bytes = b'',
      files: Mapping[str, bytes] | None = None,
      limits: ProgramLimits = DEFAULTS) -> Result:
    """Runs a program as `__main__`.

    Args:
      program: Python source.
      stdin: its standard input.
      files: contents by name, in the folder where it runs.
      limits: most time, memory and output.

    Raises:
      SandboxError: the sandbox could not be made.
    """

  def check(
      self, program: str, tests: Suite, *,
      limits: ProgramLimits = DEFAULTS) -> list[Outcome]:
    """Judges a program; returns one outcome for each test, in order.

    Raises:
      SandboxError: a sandbox could not be made, or the checker failed.
    """
