"""The folder of a run: one run at a time, and files written whole."""

import contextlib
import fcntl
import os
import pathlib
import tempfile
from typing import Iterator


@contextlib.contextmanager
def held(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Makes the folder if needed, and locks it against other runs.

  The lock ends with the process, in whatever way that ends.

  Args:
    path: the folder.

  Yields:
    The folder.

  Raises:
    ValueError: it cannot be written to, or another run is at work in it.
  """
  folder = pathlib.Path(path)
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


def write_whole(path: pathlib.Path, text: str) -> None:
  """Writes a file whole or, on a full disk, not at all (OSError)."""
  part = path.with_name(path.name + '.part')
  part.write_text(text)
  part.replace(path)
