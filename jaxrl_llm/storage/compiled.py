"""Folder of compiled programs, JAX's persistent compilation cache.

The second start of a job loads its programs instead of compiling them. JAX
finds a program by its code, the versions of JAX and XLA, flags and devices; the
folder's name has the processor and the number of cores, for which XLA also
compiles. What JAX's own options say comes first.
"""

import contextlib
import hashlib
import os
import pathlib
import platform
import secrets
import tempfile
import time
from typing import Any

from absl import logging
import jax

# It has no public place for another store.
from jax._src import compilation_cache as _internal
from jax.experimental.compilation_cache import compilation_cache

from jaxrl_llm.storage import paths

AUTO = 'auto'
# Loading a program takes milliseconds, so most are worth a file.
_SECONDS = 0.1
_BYTES = 2 << 30
_DIGEST = 32  # bytes of SHA-256
_SUFFIX, _PART = '.program', '.part'
_PATIENCE = 10.0  # seconds until other hosts see a file in a shared folder
_OPTION = 'JAX_COMPILATION_CACHE_DIR'
_used: list[str] = []  # the folder that JAX has from here, if any


class Store:
  """Programs in a folder, by key; has the methods of JAX's `CacheInterface`.

  A file is written whole or not at all, has a checksum, and is removed if it is
  damaged. Processes may share the folder. Once it is larger than `limit`, the
  programs that were not used for the longest time are removed. If nothing can
  be written, it warns once.
  """

  def __init__(self, folder: pathlib.Path, limit: int = _BYTES):
    """Makes the store.

    Args:
      folder: it exists.
      limit: bytes.
    """
    self._path = folder  # JAX's name of it
    self._limit = limit
    self._room = 0  # bytes to write before the folder is looked at again
    self._writes = True

  def get(self, key: str) -> bytes | None:
    """Returns a program, or None if it is not there or damaged."""
    path = self._path / f'{key}{_SUFFIX}'
    try:
      found = path.read_bytes()
    except OSError:
      return None
    if hashlib.sha256(found[_DIGEST:]).digest() == found[:_DIGEST]:
      with contextlib.suppress(OSError):
        os.utime(path)  # It was used just now.
      return found[_DIGEST:]
    with contextlib.suppress(OSError):
      path.unlink()
    return None

  def put(self, key: str, value: bytes) -> None:
    """Keeps a program."""
    if not self._writes:
      return
    part = None
    try:
      handle, part = tempfile.mkstemp(_PART, dir=self._path)
      with open(handle, 'wb') as file:
        file.write(hashlib.sha256(value).digest() + value)
      os.replace(part, self._path / f'{key}{_SUFFIX}')
      self._room -= len(value)
      if self._room <= 0:
        self._prune()
    except OSError as error:
      self._writes = False
      _warn(self._path, f'cannot be written ({error.strerror})')
      if part:
        with contextlib.suppress(OSError):
          os.unlink(part)

  def clear(self) -> None:
    """Does nothing; JAX's interface has it."""

  def _prune(self) -> None:
    """Removes the oldest programs above the limit, and files left over."""
    found, a_day_ago = [], time.time() - 86_400
    for entry in os.scandir(self._path):
      with contextlib.suppress(OSError):  # Another process removes them too.
        at = entry.stat()
        if entry.name.endswith(_SUFFIX):
          found.append((at.st_mtime, at.st_size, entry.path))
        elif entry.name.endswith(_PART) and at.st_mtime < a_day_ago:
          os.unlink(entry.path)
    size = sum(size for _, size, _ in found)
    # Other processes write too.
    self._room = (self._limit - size) // 16
    for _, of_file, path in sorted(found):
      if size <= self._limit:
        break
      with contextlib.suppress(OSError):
        os.unlink(path)
      size -= of_file


def start(folder: str | None, channel: Any = None) -> None:
  """Makes JAX keep compiled programs in a folder, and look for them there.

  Does nothing if the caller has chosen a folder by JAX's own option.

  Args:
    folder: on disk or in a bucket; AUTO is in the user's folder for caches;
      None keeps none.
    channel: `channel.Channel` of the processes of a run, which all call this.
  """
  ours = _OPTION not in os.environ and (
      jax.config.jax_compilation_cache_dir or None) in (None, *_used)
  path = _opened(folder) if ours and folder else None
  if channel is not None and channel.count > 1:
    path = _shared(path, channel)
  if ours and [str(path)] * bool(path) != _used:
    _use(path)


def folder() -> paths.Path | None:
  """Returns the folder in which JAX keeps compiled programs, if it has one.

  Raises:
    ValueError: it is in storage of a kind that is not known here.
  """
  path = jax.config.jax_compilation_cache_dir
  return paths.place(path) if path else None


def _use(path: paths.Path | None) -> None:
  """Gives JAX a folder, or takes the one back that it has."""
  _used[:] = [str(path)] if path else []
  jax.config.update('jax_compilation_cache_dir', str(path) if path else None)
  compilation_cache.reset_cache()
  if not path:
    return
  # Its default; another value is the caller's.
  if jax.config.jax_persistent_cache_min_compile_time_secs == 1.0:
    jax.config.update('jax_persistent_cache_min_compile_time_secs', _SECONDS)
  if paths.in_bucket(path):  # XLA's own files would need a folder on disk.
    jax.config.update('jax_persistent_cache_enable_xla_caches', 'none')
  # JAX's store leaves a file that a full disk cut off, and never mends it.
  elif {'_cache', '_cache_initialized'} <= {*vars(_internal)}:
    limit = jax.config.jax_compilation_cache_max_size
    _internal._cache = Store(path, _BYTES if limit < 0 else limit)
    _internal._cache_initialized = True


def _opened(folder: str) -> paths.Path | None:
  """Returns the folder for this machine, or None with a warning."""
  if folder == AUTO:
    base = os.environ.get('XDG_CACHE_HOME', '')
    base = base if os.path.isabs(base) else os.path.expanduser('~/.cache')
    folder = os.path.join(base, 'jaxrl_llm', 'compiled')
  try:
    path = paths.absolute(folder) / machine()
    if paths.in_bucket(path):
      paths.reachable(path)
    else:
      # Programs run as they are: nobody else may write them.
      path.mkdir(mode=0o700, parents=True, exist_ok=True)
      tempfile.TemporaryFile(dir=path).close()
  except (OSError, ValueError) as error:
    _warn(folder, 'cannot be written '
          f'({getattr(error, "strerror", None) or error})')
    return None
  return path


def _shared(path: paths.Path | None, channel: Any) -> paths.Path | None:
  """Returns the path if all processes have the same folder there, else None.

  JAX writes in the first process only. If the others find nothing, they compile
  while it waits for them, on GPUs in the middle of a compilation. On CPUs they
  never do, since JAX's key depends on the process there.
  """
  if jax.default_backend() == 'cpu':
    return None
  named = channel.gather(str(path) if path else '')
  if not all(named):
    return None
  seen = len({*named}) == 1
  if seen and not paths.in_bucket(path):
    mark = path / channel.gather(f'{secrets.token_hex(8)}{_PART}')[0]
    with contextlib.suppress(OSError):
      if channel.first:
        mark.touch()
    channel.gather()
    last = time.monotonic() + _PATIENCE
    while not (seen := mark.exists()) and time.monotonic() < last:
      time.sleep(0.1)
    seen = all(channel.gather(seen))
    with contextlib.suppress(OSError):
      if channel.first:
        mark.unlink()
  if not seen:
    _warn(path, 'is not the same folder in all processes, on hosts of one kind')
  return path if seen else None


def machine() -> str:
  """Returns a name for machines that may run each other's programs."""
  cores = (len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity')
           else os.cpu_count())
  about = [platform.system(), platform.processor(), str(cores),
           os.environ.get('NPROC', '')]
  with contextlib.suppress(OSError):
    about += sorted({
        line for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines()
        if line.partition(':')[0].strip() in (
            'model name', 'flags', 'Features', 'CPU implementer', 'CPU part')})
  digest = hashlib.sha256('\n'.join(about).encode()).hexdigest()
  return f'{platform.machine()}-{cores}-{digest[:12]}'


def _warn(folder: Any, why: str) -> None:
  logging.warning(
      'Compiled programs are not kept, since %s %s: set compilation_cache to '
      'another folder, or to none.', folder, why)
