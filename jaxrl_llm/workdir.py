"""The folder of a run: one run at a time, and files written whole."""

import contextlib
import fcntl
import os
import pathlib
import secrets
import socket
import tempfile
import time
from typing import Any, Callable, Iterator

_SEEN = 20.0  # seconds until a network file system shows a new file


@contextlib.contextmanager
def held(
    path: str | os.PathLike[str], first: bool = True) -> Iterator[pathlib.Path]:
  """Makes the folder if needed, and locks it against other runs.

  The lock ends with the process, in whatever way that ends.

  Args:
    path: the folder.
    first: whether this is the first process of the run; others do nothing.

  Yields:
    The folder.

  Raises:
    ValueError: it cannot be written to, or another run is at work in it.
  """
  folder = pathlib.Path(path)
  if not first:
    yield folder
    return
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
    lock = open(folder / 'lock', 'ab')
  except OSError as error:
    raise ValueError(
        f'workdir={path} cannot be written to ({error.strerror}): choose '
        'another folder.') from error
  with lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise ValueError(
          f'Another run is at work in workdir={path}: wait for it, or choose '
          'another folder.') from None
    except OSError:
      pass  # Some network file systems have no locks.
    yield folder


def check_shared(folder: pathlib.Path, channel: Any) -> None:
  """Checks that all processes of a run have the same folder.

  Args:
    folder: of the run; the first process holds it.
    channel: `processes.Channel`; all processes must call this.

  Raises:
    ValueError: a process does not see what the first one writes.
  """
  if channel.count == 1:
    return
  note = folder / f'process-0-{secrets.token_hex(8)}'
  if channel.first:
    write_whole(note, '')
  note = folder / channel.gather(note.name)[0]
  last = time.monotonic() + _SEEN
  while not (seen := note.exists()) and time.monotonic() < last:
    time.sleep(0.1)
  where = channel.gather(None if seen else socket.gethostname())
  if channel.first:
    note.unlink()
  for index, host in enumerate(where):
    if host:
      raise ValueError(
          f'workdir={folder} of process {index} on {host} is another folder '
          'than that of process 0: name one that all hosts share.')


def watch(folder: pathlib.Path) -> Callable[[], bool]:
  """Makes a function that tells whether a run's folder is gone.

  It is gone if it was removed, emptied or moved, even if there is another one
  in its place. An error of a file system that may be over soon says nothing.

  Args:
    folder: with the run's config.json.
  """
  def number():
    (folder / 'config.json').stat()
    found = folder.stat()
    return found.st_dev, found.st_ino

  before = number()

  def gone():
    try:
      return number() != before
    except (FileNotFoundError, NotADirectoryError):
      return True
    except OSError:
      return False

  return gone


def write_whole(path: pathlib.Path, content: str | bytes) -> None:
  """Writes a file whole or, on a full disk, not at all (OSError).

  A character that UTF-8 does not have becomes '?'.
  """
  if isinstance(content, str):
    content = content.encode('utf8', 'replace')
  part = path.with_name(path.name + '.part')
  try:
    part.write_bytes(content)
    part.replace(path)
  except OSError as error:
    with contextlib.suppress(OSError):
      part.unlink(missing_ok=True)
    raise OSError(error.errno, error.strerror, str(path)) from error
