"""Paths on disk (pathlib) and in buckets (`gs://`, by etils.epath and gcsfs).

An object in a bucket is written whole or not at all, and never appended to. A
file that a library must open by name is read from a copy on disk.
"""

import atexit
from concurrent import futures
import contextlib
import functools
import logging
import os
import pathlib
import shutil
import tempfile
import threading
from typing import Any, Callable, Iterable, Iterator

_SCHEME = 'gs://'
_ANSWER = 15.0  # seconds in which a bucket must answer for the first time
# They choose versions or patterns in gcsfs and TensorStore.
_REFUSED = '#?*[]'
Path = Any  # pathlib.Path, or epath.Path in a bucket
Text = str | os.PathLike[str]
_reached: set[str] = set()  # buckets that have answered
_copies: dict[pathlib.Path, str] = {}  # of `local_folder`: folders of buckets


class _Said(OSError):
  """Error whose sentence `explained` leaves as it is."""


class _Missing(_Said, FileNotFoundError):
  """The same, of an object or a bucket that does not exist."""


def in_bucket(path: Text) -> bool:
  """Returns whether a path is one of a bucket."""
  return os.fspath(path).startswith(_SCHEME)


def place(path: Text) -> Path:
  """Returns a path as an object with pathlib's methods.

  Raises:
    ValueError: the path is in a bucket, and gcsfs is not installed; or its
      scheme is not known; or it names no bucket, or has one of `#?*[]`.
  """
  text = os.fspath(path)
  if not in_bucket(text):
    if '://' in text:
      raise ValueError(
          f'{text} is of no kind of storage that is known: give a folder, or '
          'gs://BUCKET/PATH.')
    return pathlib.Path(text)
  if not _bucket(text):
    raise ValueError(f'{text} names no bucket: give gs://BUCKET/PATH.')
  refused = next((c for c in text if c in _REFUSED), None)
  if refused:
    raise ValueError(
        f'{text} has the character {refused}, which paths in buckets cannot '
        'have here: choose another name.')
  _require()
  from etils import epath
  return epath.Path(text)


def _bucket(path: Text) -> str:
  """Returns the name of the bucket that a path is in."""
  return os.fspath(path).removeprefix(_SCHEME).partition('/')[0]


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
  # `explained` reports the same errors.
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
  """Turns errors of gcsfs for a path in a bucket into OSError, one sentence.

  Errors of a path on disk pass.
  """
  try:
    yield
  except Exception as error:  # of gcsfs, aiohttp, google.auth, requests
    if not in_bucket(path) or isinstance(error, _Said):
      raise
    said = ' '.join(str(error).split())[:200].rstrip('.:, ')
    kind = _Missing if isinstance(error, FileNotFoundError) else _Said
    raise kind(
        f'{os.fspath(path)} cannot be reached or used '
        f'({type(error).__name__}: {said}): check the name of the bucket, '
        'your rights to it (gcloud auth application-default login), and the '
        'network.') from error


def answered(path: Text, call: Callable[[], Any]) -> Any:
  """Returns the result of a call to a bucket, within 15 seconds.

  Raises:
    OSError: it fails, or does not answer.
  """
  found: futures.Future[Any] = futures.Future()

  def run():
    try:
      with explained(path):
        found.set_result(call())
    except Exception as error:  # pylint: disable=broad-exception-caught
      found.set_exception(error)

  # A daemon: a call that hangs must not keep the program from its end.
  threading.Thread(target=run, daemon=True).start()
  if not futures.wait([found], _ANSWER).done:
    raise _Said(
        f'{os.fspath(path)} did not answer within {_ANSWER:.0f} s: check the '
        'network, and the name of the bucket.')
  return found.result()


def reachable(path: Text) -> None:
  """Checks within 15 seconds that the bucket of a path answers.

  Does nothing for a path on disk, or in a bucket that has answered before.

  Args:
    path: need not exist.

  Raises:
    OSError: the bucket is missing, may not be read, or does not answer.
    ValueError: the bucket's name is not valid.
  """
  place(path)
  if not in_bucket(path) or _bucket(path) in _reached:
    return
  # Reading the bucket's own entry needs a right that a user of its objects may
  # not have.
  answered(path, lambda: files().call(
      'GET', 'b/{}/o', _bucket(path), maxResults=1, json_out=True))
  _reached.add(_bucket(path))


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
  reachable(path)
  with tempfile.TemporaryDirectory(prefix='jaxrl_llm-') as folder:
    copy = pathlib.Path(folder, os.path.basename(path))
    with explained(path):
      files().get_file(os.fspath(path), str(copy))
    yield copy


@contextlib.contextmanager
def new_path(path: Path) -> Iterator[pathlib.Path]:
  """Gives a place on disk for a file or a folder, which becomes `path` at the
  end.

  Raises:
    OSError: it cannot be written.
  """
  bucket = in_bucket(path)
  if not bucket:
    path.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(
      dir=None if bucket else path.parent,
      ignore_cleanup_errors=True) as folder:
    part = pathlib.Path(folder, path.name)
    yield part
    if bucket:
      upload(part, path)
    else:
      os.replace(part, path)


@functools.cache
def local_folder(path: Text) -> pathlib.Path:
  """Returns a folder on disk: the path, or a copy of one in a bucket.

  Its files are copied once per process; the copy is removed at its end, or by
  `forget_copies`.

  Raises:
    OSError: the bucket cannot be read, or has no such folder.
  """
  if not in_bucket(path):
    return pathlib.Path(path).expanduser()
  reachable(path)
  names = sizes(path)
  if not names:
    raise FileNotFoundError(
        f'{os.fspath(path)} has no files: check the name of the folder.')
  return _copied(os.fspath(path).rstrip('/'), names)


@functools.cache
def local_file(path: Text) -> pathlib.Path:
  """Returns a file on disk: the path, or a copy as of `local_folder`.

  Raises:
    OSError: the bucket cannot be read, or has no such file.
  """
  if not in_bucket(path):
    return pathlib.Path(path).expanduser()
  reachable(path)
  folder, _, name = os.fspath(path).rpartition('/')
  return _copied(folder, [name]) / name


def _copied(folder: str, names: Iterable[str]) -> pathlib.Path:
  """Returns a folder on disk with copies of files of one in a bucket."""
  copy = pathlib.Path(tempfile.mkdtemp(prefix='jaxrl_llm-'))
  _copies[copy] = folder
  atexit.register(forget_copies)
  for name in names:
    target = copy / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with explained(f'{folder}/{name}'):
      files().get_file(f'{folder}/{name}', str(target))
  return copy


def forget_copies() -> None:
  """Removes the copies that `local_folder` and `local_file` have made."""
  local_folder.cache_clear()
  local_file.cache_clear()
  for copy in _copies:
    shutil.rmtree(copy, ignore_errors=True)


def as_given(sentence: str) -> str:
  """Names folders of buckets, in a sentence, instead of their copies."""
  for copy, path in _copies.items():
    sentence = sentence.replace(str(copy), path)
  return sentence


def upload(source: pathlib.Path, path: Text) -> None:
  """Copies a file on disk, or all files of a folder, into a bucket.

  A folder is written whole or, if that fails and the bucket still answers, not
  at all. Its config.json is last: the folder of a model that has one is whole.

  Raises:
    OSError: they cannot be written.
  """
  target = os.fspath(path)
  if source.is_file():
    with explained(path):
      files().put_file(str(source), target)
    return
  below = [file.relative_to(source) for file in sorted(
      source.rglob('*'), key=lambda file: (file.name == 'config.json', file))
           if file.is_file()]
  written = []
  try:
    with explained(path):
      for name in below:
        written.append(f'{target}/{name}')
        files().put_file(str(source / name), written[-1])
  except BaseException:
    # The last one too: it may be there, though the answer was lost.
    with contextlib.suppress(Exception):
      for name in written:
        answered(name, lambda name=name: files().rm_file(name))
    raise


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
