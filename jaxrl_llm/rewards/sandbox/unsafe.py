"""Programs in a process with limits, on any system. This is no sandbox."""

import contextlib
import os
import pathlib
import subprocess
import tempfile
from typing import Iterator

from jaxrl_llm.rewards.sandbox import local, process
from jaxrl_llm.rewards.sandbox.protocol import ProgramLimits, SandboxError


class SubprocessExecutor(local.LocalExecutor):
  """Runs programs as the user who runs this process; stops accidents only.

  A program has its own session, an empty environment, an empty folder, limits
  of time, memory, files and output, and no input. The tests run in another
  process, which stops what forges a pass by accident or by a known trick. Not
  stopped: a program can read and write whatever this user can, the file with
  its own tests among it, reach the network, send signals to the user's other
  processes, change the checker by ptrace where the system allows that, and
  leave a process behind that has left its session and parent.
  benchmarks/results/sandbox.md has a table, made by running such programs.
  """

  def __init__(self, *, allow_unsafe: bool = False):
    """Makes the executor.

    Raises:
      ValueError: `allow_unsafe` is not True.
    """
    if not allow_unsafe:
      raise ValueError(
          'A program in a mere subprocess can do all that this user can: set '
          'task.sandbox to bubblewrap or remote, or task.allow_unsafe=True if '
          'this machine has nothing to lose.')
    super().__init__()

  @staticmethod
  @contextlib.contextmanager
  def started(
      guest: local.Guest, stdin: bytes, limits: ProgramLimits,
  ) -> Iterator[process.Process]:
    """Starts a process; see `local.LocalExecutor`."""
    with _folder() as folder:
      for name, data in guest.files.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
      try:
        # A limit of processes would count all of the user's.
        one = guest.kind(
            local.command(guest, folder, str(process.GUEST), limits, -1),
            stdin=stdin, limits=limits, descriptors=guest.descriptors,
            folder=folder)
      except OSError as error:
        raise SandboxError(f'Python cannot be started ({error})') from None
      with contextlib.closing(one):
        yield one


@contextlib.contextmanager
def _folder() -> Iterator[str]:
  """Makes a folder for a program, and deletes it whatever is in it then."""
  # Files that it has made unreadable are its own.
  made = tempfile.TemporaryDirectory(
      prefix='jaxrl_llm_', ignore_cleanup_errors=True)
  try:
    yield made.name
  finally:
    with contextlib.suppress(OSError):  # so that it can be deleted
      os.chmod(made.name, 0o700)
    try:
      made.cleanup()
    except RecursionError:  # thousands of folders in one another
      subprocess.run(['rm', '-rf', made.name], check=False)
