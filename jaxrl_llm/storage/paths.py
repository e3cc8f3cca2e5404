"""Paths on disk (pathlib) and in buckets (`gs://`, by etils.epath and gcsfs).

An object in a bucket is written whole or not at all, and never appended to. A
file that a library must open by name is read from a copy on disk.
"""

import contextlib
import functools
import logging
import os
import pathlib
import shutil
import tempfile
import threading
from typing import Any, Callable, Iterator

_SCHEME = 'gs://'
_ANSWER = 15.0  # seconds in which a bucket must answer for the first time
Path = Any  # pathlib.Path, or epath.Path in a bucket
Text = str | os.PathLike[str]


def in_bucket(path: Text) -> bool:
  """Returns whether a path is one of a bucket."""
  return os.fspath(path).startswith(_SCHEME)


def place(path: Text) -> Path:
  """Returns a path as an object with pathlib's methods.

  Raises:
    ValueError: the path is in a bucket, and gcsfs is not installed; or its
      scheme is not known.
  """
  text = os.fspath(path)
  if not in_bucket(text):
    if '://' in text:
      raise ValueError(
          f'{text} is of no kind of storage that is known: give a folder, or '
          'gs://BUCKET/PATH.')
    return pathlib.Path(text)
  _require()
  from etils import epath
  return epath.Path(text)


def absolute(path: Text) -> Path:
  """Returns `place` of a path, absolute if it is on disk."""
  found = place(path)
  return found if in_bucket(path) else found.absolute()


@functools.cache
def files() -> Any:
  """Returns gcsfs's file system, the one that epath and Orbax use.

  It looks for credentials, which may take long without a network.

  Raises:
    ValueError: gcsfs is not installed.
  """
  _require()
  import fsspec
  # `explained` says what it logs.
  logging.getLogger('gcsfs').setLevel(logging.CRITICAL)
  # TensorStore and other hosts write objects too.
  fsspec.config.conf.setdefault('gcs', {})['use_listings_cache'] = False
  from etils.epath import backend
  return backend.fsspec_backend.fs(_SCHEME)


@functools.cache
def _require() -> None:
  """Raises ValueError if gcsfs is not installed."""
  try:
    import fsspec
    fsspec.get_filesystem_class('gcs')
  except ImportError as error:
    raise ValueError(
        'Paths of gs:// need the extra `gcs`: pip install '
        "'jaxrl_llm[gcs]'.") from error


@contextlib.contextmanager
def explained(path: Text) -> Iterator[None]:
  """Turns what gcsfs raises for a path in a bucket into OSError, one sentence.

  Errors of a path on disk pass.
  """
  try:
    yield
  except Exception as error:  # of gcsfs, aiohttp, google.auth, requests
    if not in_bucket(path):
      raise
    said = ' '.join(str(error).split())[:200].rstrip('.:, ')
    kind = (FileNotFoundError if isinstance(error, FileNotFoundError)
            else OSError)
    raise kind(
        f'{os.fspath(path)} cannot be reached or used '
        f'({type(error).__name__}: {said}): check the name of the bucket, '
        'your rights to it (gcloud auth application-default login), and the '
        'network.') from error


def answered(path: Text, call: Callable[[], Any]) -> Any:
  """Returns what a call to a bucket returns, within 15 seconds.

  Raises:
    OSError: it fails, or does not answer.
  """
  found: list[Any] = []

  def run():
    try:
      with explained(path):
        found.extend((call(), None))
    except Exception as error:  # pylint: disable=broad-exception-caught
      found.extend((None, error))

  # A daemon: a call that hangs must not keep the program from its end.
  thread = threading.Thread(target=run, daemon=True)
  thread.start()
  thread.join(_ANSWER)
  if not found:
    raise TimeoutError(
        f'{os.fspath(path)} did not answer within {_ANSWER:.0f} s: check the '
        'network, and the name of the bucket.')
  value, error = found
  if error:
    raise error
  return value


@contextlib.contextmanager
def local(path: Text) -> Iterator[pathlib.Path]:
  """Gives a file on disk to read: the path, or a copy of one in a bucket.

  Yields:
    The file; a copy is removed afterwards.

  Raises:
    FileNotFoundError: there is no such object.
    OSError: the bucket cannot be read.
  """
  if not in_bucket(path):
    yield pathlib.Path(path)
    return
  with tempfile.TemporaryDirectory(prefix='jaxrl_llm-') as folder:
    copy = pathlib.Path(folder, os.path.basename(path))
    with explained(path):
      files().get_file(os.fspath(path), str(copy))
    yield copy


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[pathlib.Path]:
  """Gives a file on disk to write, which becomes `path` at the end.

  Raises:
    OSError: it cannot be written.
  """
  bucket = in_bucket(path)
  if not bucket:
    path.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(
      dir=None if bucket else path.parent) as folder:
    file = pathlib.Path(folder, path.name)
    yield file
    if bucket:
      upload(file, path)
    else:
      os.replace(file, path)


@functools.cache
def local_folder(path: Text) -> pathlib.Path:
  """Returns a folder on disk: the path, or a copy of one in a bucket.

  Its files are copied once per process; the copy is removed at its end.

  Raises:
    OSError: the bucket cannot be read, or has no such folder.
  """
  if not in_bucket(path):
    return pathlib.Path(path).expanduser()
  import atexit
  copy = pathlib.Path(tempfile.mkdtemp(prefix='jaxrl_llm-'))
  atexit.register(shutil.rmtree, copy, ignore_errors=True)
  with explained(path):
    for name in sizes(path):
      target = copy / name
      target.parent.mkdir(parents=True, exist_ok=True)
      files().get_file(f'{os.fspath(path)}/{name}', str(target))
  return copy


def upload(source: pathlib.Path, path: Text) -> None:
  """Copies a file on disk, or all files of a folder, into a bucket.

  Raises:
    OSError: they cannot be written.
  """
  with explained(path):
    if source.is_file():
      files().put_file(str(source), os.fspath(path))
      return
    for file in sorted(source.rglob('*')):
      if file.is_file():
        files().put_file(
            str(file), f'{os.fspath(path)}/{file.relative_to(source)}')


def sizes(folder: Text) -> dict[str, int]:
  """Returns the sizes of all files below a folder, by their paths in it.

  A folder that does not exist has none.
  """
  if in_bucket(folder):
    root = os.fspath(folder).removeprefix(_SCHEME).rstrip('/') + '/'
    with explained(folder):
      found = files().find(root, detail=True)
    # An object whose name ends in / stands for an empty folder.
    return {name.removeprefix(root): entry['size']
            for name, entry in sorted(found.items()) if name[-1] != '/'}
  root = pathlib.Path(folder)
  return {str(path.relative_to(root)): path.stat().st_size
          for path in sorted(root.rglob('*')) if path.is_file()}


def remove(folder: Path) -> None:
  """Removes a folder with all its files, if it is there."""
  if not in_bucket(folder):
    shutil.rmtree(folder, ignore_errors=True)
  elif sizes(folder):
    with explained(folder):
      folder.rmtree()


def write_whole(path: Path, content: str | bytes) -> None:
  """Writes a file whole or, on a full disk, not at all (OSError).

  A character that UTF-8 does not have becomes '?'.
  """
  if isinstance(content, str):
    content = content.encode('utf8', 'replace')
  if in_bucket(path):
    with explained(path):
      files().pipe_file(os.fspath(path), content)
    return
  part = path.with_name(path.name + '.part')
  try:
    part.write_bytes(content)
    part.replace(path)
  except OSError as error:
    with contextlib.suppress(OSError):
      part.unlink(missing_ok=True)
    raise OSError(error.errno, error.strerror, str(path)) from error
