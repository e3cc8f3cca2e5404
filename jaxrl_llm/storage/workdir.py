"""The folder of a run, on disk or in a bucket: one run at a time."""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import secrets
import socket
import tempfile
import time
from typing import Any, Callable, IO, Iterator

from jaxrl_llm.storage import bucket, paths

_SEEN = 20.0  # seconds until a network file system shows a new file
_locks: set[IO[bytes]] = set()  # open files of the locks that are held


@dataclasses.dataclass(frozen=True)
class Folder:
  """Folder of a run that this process holds.

  Attributes:
    path: the folder, with pathlib's methods.
    local: folder on disk for files that grow, and for those that a library
      writes: `path` itself, or one that is copied into the bucket.
    watch: makes a function that tells whether the folder is gone. It is gone
      if it was removed, emptied or moved, even if there is another one in its
      place; in a bucket, if another run has taken it over. An error of the
      storage that may be over soon says nothing. The folder must have a file,
      whose name is the argument: by default, the run's config.json.
    sync: copies `local` into the bucket now; else that happens once a minute
      and at the end.
  """
  path: paths.Path
  local: pathlib.Path
  watch: Callable[..., Callable[[], bool]]
  sync: Callable[[], Any] = lambda: None


@contextlib.contextmanager
def held(path: paths.Text, first: bool = True) -> Iterator[Folder]:
  """Makes the folder if needed, and locks it against other runs.

  The lock ends with the process, in whatever way that ends; in a bucket, a
  minute later if the process was killed on another host.

  Args:
    path: the folder.
    first: whether this is the first process of the run; others do nothing.

  Yields:
    The folder.

  Raises:
    ValueError: it cannot be written to, or another run is at work in it.
    OSError: the bucket could not take the last rows of the files that grow.
  """
  place = paths.absolute(path)
  if not first:
    yield Folder(place, place, lambda *_: lambda: False)
  elif paths.in_bucket(place):
    with bucket.held(place) as (local, lock, copy):
      yield Folder(place, local, lambda *_: lambda: lock.lost, copy.sync)
  else:
    with _locked(place):
      yield Folder(
          place, place, lambda name='config.json': _watch(place, name))


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
  """Locks a folder on disk."""
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
    lock = open(folder / 'lock', 'ab')
  except OSError as error:
    raise ValueError(
        f'workdir={folder} cannot be written to ({error.strerror}): choose '
        'another folder.') from error
  with lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise ValueError(
          f'Another run is at work in workdir={folder}: wait for it, or choose '
          'another folder.') from None
    except OSError:
      pass  # Some network file systems have no locks.
    _locks.add(lock)
    try:
      yield
    finally:
      _locks.discard(lock)


def _forget_locks() -> None:
  """Closes the files of locks in a forked process, which may outlive the run.
  """
  while _locks:
    _locks.pop().close()


os.register_at_fork(after_in_child=_forget_locks)


def check_shared(folder: paths.Path, channel: Any) -> None:
  """Checks that all processes of a run have the same folder.

  Args:
    folder: of the run; the first process holds it.
    channel: `processes.Channel`; all processes must call this.

  Raises:
    ValueError: a process does not see the files that the first one writes.
  """
  if channel.count == 1:
    return
  note = folder / f'process-0-{secrets.token_hex(8)}'
  if channel.first:
    paths.write_whole(note, '')
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


def _watch(folder: pathlib.Path, name: str) -> Callable[[], bool]:
  """Makes `Folder.watch` of a folder on disk."""
  def number():
    (folder / name).stat()
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
