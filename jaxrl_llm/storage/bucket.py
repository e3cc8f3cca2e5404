"""The folder of a run in a bucket: its lock, and the files that grow.

A bucket has no locks and no files to append to. The lock is an object that the
run writes anew every few seconds; one that nobody writes is of a run that was
killed. Files that grow are on disk, and copied into the bucket as they change.
"""

import contextlib
import datetime
import json
import os
import pathlib
import secrets
import shutil
import socket
import tempfile
import threading
import time
from typing import Any, Callable, Iterator

from absl import logging

from jaxrl_llm.storage import paths

_BEAT = 10.0  # seconds from one writing of the lock to the next
_STALE = 60.0  # seconds without one, after which the run counts as killed
_COPY = 60.0  # seconds between copies of the files that grow


class Lock:
  """Object in a bucket that says which run is at work there.

  Attributes:
    lost: whether the object was removed, or taken over by another run.
  """

  def __init__(self, folder: paths.Text):
    """Takes the lock.

    Args:
      folder: in a bucket.

    Raises:
      ValueError: another run has it.
      OSError: the bucket is missing, or cannot be written to.
    """
    self._folder = os.fspath(folder)
    self._path = f'{self._folder}/lock'
    self._own = dict(
        **_namespace(), process=os.getpid(), id=secrets.token_hex(8))
    self.lost = False
    self._ahead = paths.answered(self._folder, self._clock)
    with paths.explained(self._folder):
      host = self._take()
    if host:
      raise ValueError(
          f'Another run is at work in workdir={self._folder}, on {host}: wait '
          'for it, or choose another folder.')

  def beat(self) -> None:
    """Writes the lock anew, unless it is lost."""
    if self.lost:
      return
    found, _ = self._read()
    if found is None or found['id'] != self._own['id']:
      self.lost = True
    else:
      self._files.pipe_file(self._path, self._content())

  def release(self) -> None:
    """Removes the lock, if it is this run's."""
    def remove():
      found, _ = self._read()
      if found and found['id'] == self._own['id']:
        self._files.rm_file(self._path)

    with contextlib.suppress(Exception):  # else it is stale after a minute
      paths.answered(self._folder, remove)

  def _clock(self) -> float:
    """Returns how many seconds the bucket's clock is ahead of this host's.

    Shows at the same time that the bucket can be written to.
    """
    self._files = paths.files()
    probe = f'{self._folder}/probe-{self._own["id"]}'
    self._files.pipe_file(probe, b'')
    ahead = self._written(probe) - time.time()
    self._files.rm_file(probe)
    return ahead

  def _take(self) -> str:
    """Takes the lock; returns the host of the run that has it, or ''."""
    seen, taken_over = None, False
    while True:
      with contextlib.suppress(FileExistsError):
        self._files.pipe_file(self._path, self._content(), mode='create')
        if taken_over:  # Another run may have removed the lock at this moment.
          time.sleep(1)
      found, written = self._read()
      if found is None:
        continue
      if found['id'] == self._own['id']:
        return ''
      age = time.time() + self._ahead - written
      if age > _STALE or _ended(found):
        with contextlib.suppress(FileNotFoundError):
          self._files.rm_file(self._path)
        taken_over = True
      elif seen not in (None, written):
        return found.get('host', 'another host')
      else:
        if seen is None:
          logging.warning(
              '%s has the lock of a run on %s: waiting until it is written '
              'anew, or for at most %.0f s.', self._folder,
              found.get('host', 'another host'), _STALE)
        seen = written
        time.sleep(1)

  def _content(self) -> bytes:
    return json.dumps(self._own).encode()

  def _read(self) -> tuple[dict[str, Any] | None, float]:
    """Returns the lock's content, if it is there, and when it was written.

    What no `Lock` has written is of an owner that only time can end; such is
    the empty file in a run that was copied from a disk.
    """
    try:
      content = self._files.cat_file(self._path)
      written = self._written(self._path)
    except FileNotFoundError:
      return None, 0.0
    with contextlib.suppress(ValueError):
      found = json.loads(content)
      if isinstance(found, dict) and 'id' in found:
        return found, written
    return {'id': None}, written

  def _written(self, path: str) -> float:
    """Returns the time at which an object was written, by the bucket's clock.
    """
    found = self._files.info(path)['mtime']
    if isinstance(found, str):
      found = datetime.datetime.fromisoformat(found)
    return found.timestamp()


def _ended(owner: dict[str, Any]) -> bool:
  """Returns whether the owner was a process of this host that is no more."""
  here = _namespace()
  if {name: owner.get(name) for name in here} != here:
    return False
  try:
    os.kill(owner['process'], 0)
  except ProcessLookupError:
    return True
  except OSError:  # of another user
    pass
  return False


def _namespace() -> dict[str, str | None]:
  """Returns the names of this host, its boot and its process namespace.

  A container may have the name of its host, but not its processes.
  """
  boot = space = None
  with contextlib.suppress(OSError):  # Linux only
    boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
    space = os.readlink('/proc/self/ns/pid')
  return dict(host=socket.gethostname(), boot=boot, space=space)


class Copy:
  """Folder on disk whose files are copied into a bucket as they change."""

  def __init__(self, folder: paths.Text, local: pathlib.Path):
    """Fetches the files that will grow, and the name of the run elsewhere.

    Args:
      folder: in a bucket.
      local: an empty folder on disk.
    """
    self._folder, self._local = os.fspath(folder), local
    self._done: dict[pathlib.Path, tuple[int, int]] = {}
    self._lock = threading.Lock()
    self._said = False
    for name in paths.sizes(folder):
      if name.endswith(('.jsonl', '_run.txt')) and (
          '/' not in name or name.startswith('sft')):
        (local / name).parent.mkdir(exist_ok=True)
        with paths.explained(folder):
          paths.files().get_file(f'{self._folder}/{name}', str(local / name))
        self._done[local / name] = _state(local / name)

  def sync(self) -> bool:
    """Copies changed files; returns False, after one warning, if it cannot."""
    with self._lock:
      try:
        for path in sorted(self._local.rglob('*')):
          below = path.relative_to(self._local)
          if not path.is_file() or below.parts[0] == 'wandb':
            continue
          state = _state(path)
          if state != self._done.get(path):
            paths.write_whole(f'{self._folder}/{below}', path.read_bytes())
            self._done[path] = state
      except OSError as error:
        if not self._said:
          logging.warning('%s The run goes on, and tries again.', error)
        self._said = True
        return False
    return True


def _state(path: pathlib.Path) -> tuple[int, int]:
  found = path.stat()
  return found.st_size, found.st_mtime_ns


@contextlib.contextmanager
def held(folder: paths.Text) -> Iterator[tuple[pathlib.Path, Lock, Copy]]:
  """Holds the lock of a folder, with a copy on disk for the files that grow.

  If the lock was lost, or the bucket does not take the last copy of the files,
  they stay on disk. An error says so, or a warning if the body has failed.

  Yields:
    The folder on disk, the lock and the copy.

  Raises:
    ValueError: another run has the lock.
    OSError: the bucket is missing, or cannot be written to; or files stayed on
      disk, which the message names.
  """
  lock = Lock(folder)
  local = pathlib.Path(tempfile.mkdtemp(prefix='jaxrl_llm-'))
  left = ''
  try:
    # A slow copy must not keep the lock from being written.
    with _repeated(lock.beat, _BEAT):
      copy = Copy(folder, local)
      try:
        with _repeated(lambda: lock.lost or copy.sync(), _COPY):
          yield local, lock, copy
      except BaseException:
        if left := _left(folder, local, lock, copy):
          logging.warning('%s', left)
        raise
      if left := _left(folder, local, lock, copy):
        raise OSError(left)
  finally:
    if not left:
      shutil.rmtree(local, ignore_errors=True)
    lock.release()


def _left(
    folder: paths.Text, local: pathlib.Path, lock: Lock, copy: Copy) -> str:
  """Copies files at the end; returns a sentence if they stay on disk."""
  if lock.lost:
    reason = (f'{os.fspath(folder)} was removed, or taken over by another run; '
              'the rows of this one')
  elif not copy.sync():
    reason = (f'The last rows of {os.fspath(folder)} could not be written '
              'there; they')
  else:
    return ''
  return f'{reason} are in {local}: copy its files by hand.'


@contextlib.contextmanager
def _repeated(call: Callable[[], Any], seconds: float) -> Iterator[None]:
  """Makes a call every few seconds, in a thread, until the body ends."""
  ended = threading.Event()

  def run():
    while not ended.wait(seconds):
      with contextlib.suppress(Exception):  # The network may be back soon.
        call()

  thread = threading.Thread(target=run, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()
