"""The directories of a run's checkpoints: their steps, and damage to them."""

import contextlib
import hashlib
import json
import math
import types
from typing import Any, Iterator
import zlib

from absl import logging

from jaxrl_llm.base import phases
from jaxrl_llm.storage import paths

FILES = 'files.json'  # of a step: size and checksum of every other file
SMALL = 1 << 16  # bytes
# Names of directories that are no steps, before the number of their step.
TORN, REPLACED = 'torn-', 'replaced-'
TEMPORARY = '.orbax-checkpoint-tmp'  # in the names of unfinished steps
_MB = 1_000_000  # bytes
# `channel.Channel` of a process for itself alone.
ALONE = types.SimpleNamespace(first=True, gather=lambda value=None: [value])


def steps(directory: paths.Text) -> list[int]:
  """Returns the steps that have a directory, ascending, damaged or not."""
  root = paths.place(directory)
  with paths.explained(root):
    names = [p.name for p in root.iterdir()] if root.is_dir() else []
  return sorted(int(name) for name in names if name.isdecimal())


def whole_steps(directory: paths.Text) -> list[int]:
  """Returns the steps that have no damage that a quick look finds."""
  root = paths.place(directory)
  return [
      step for step in steps(root) if not fault(root / str(step), False)]


def score(directory: paths.Text, step: int) -> float | None:
  """Returns the score saved with a step, or None."""
  path = paths.place(directory) / str(step) / 'metrics' / 'metrics'
  return json.loads(path.read_text())['score'] if path.exists() else None


def untrained(directory: paths.Text, which: str, step: int) -> str:
  """Returns a sentence where the best checkpoint is the first of several.

  Args:
    directory: holds the steps.
    which: 'best' or another choice, for which there is no sentence.
    step: of the checkpoint that was chosen.
  """
  newest = max(whole_steps(directory), default=0)
  if step or which != 'best' or not newest:
    return ''
  return ('The best checkpoint is of step 0, before any update, since no later '
          f'evaluation was better: --checkpoint=last takes step {newest}.')


def saving(directory: paths.Path, size: int) -> Any:
  """Makes a phase of a save; on disk, it counts the bytes so far.

  Args:
    directory: of the steps.
    size: bytes to save. The files are compressed, and may be done before.
  """
  if paths.in_bucket(directory):
    return phases.phase('saving')

  def written():
    total = 0
    with contextlib.suppress(OSError):  # They are renamed in the end.
      for folder in directory.glob(f'*{TEMPORARY}*'):
        total += sum(paths.sizes(folder).values())
    return total // _MB

  return phases.phase('saving', size // _MB, 'MB', written(), poll=written)


def digest(directory: paths.Text, step: int) -> str:
  """Returns sixteen hex digits that identify the content of a step."""
  path = paths.place(directory) / str(step) / FILES
  return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def fault(path: paths.Path, thorough: bool = True) -> str | None:
  """Describes the damage of a step's directory; None if it is whole.

  Args:
    path: the directory.
    thorough: compare the checksum of every file; else, and in a bucket, the
      checksums of small files and the sizes of the others.
  """
  if paths.in_bucket(path):  # which has checksums of its own
    thorough = False
  try:
    signed = json.loads((path / FILES).read_text())
    there = paths.sizes(path)
    for name, (size, known) in signed.items():
      found = there.get(name)
      if found is None:
        return f'{name} is missing'
      if found != size:
        return f'{name} has {found} bytes instead of {size}'
      if (thorough or size < SMALL) and checksum(path / name) != known:
        return f'{name} was altered after it was written'
  except FileNotFoundError:
    return f'{FILES} is missing'
  except (ValueError, TypeError, AttributeError):
    return f'{FILES} is unreadable'
  return None


def whole(root: paths.Path, best: bool) -> Iterator[paths.Path]:
  """Directories of whole steps, the one to restore first; warns of others."""
  def worth(step):
    path = root / str(step)
    value = score(root, step) if best and not fault(path, False) else None
    return -math.inf if value is None else value, step

  for step in sorted(steps(root), key=worth, reverse=True):
    reason = fault(root / str(step))
    if reason:
      warn_torn(root / str(step), reason)
    else:
      yield root / str(step)


def set_aside(root: paths.Path, step: int, name: str = TORN) -> None:
  """Gives a step's directory another name, TORN or REPLACED."""
  target = root / f'{name}{step}'
  with paths.explained(root):
    paths.remove(target)
    (root / str(step)).rename(target)


def settle(root: paths.Path) -> None:
  """Finishes the work of `set_aside`; no save may be under way.

  A step that was to be replaced is removed once the new one is whole, and else
  gets its name back. A torn one is removed once it or a later step is whole.
  """
  with paths.explained(root):
    for old in root.glob(f'{REPLACED}*'):
      new = root / old.name.removeprefix(REPLACED)
      if fault(new, False) and not fault(old, False):
        paths.remove(new)
        old.rename(new)
      else:
        paths.remove(old)
    if torn := [*root.glob(f'{TORN}*')]:
      last = max(whole_steps(root), default=-1)
      for path in torn:
        if int(path.name.removeprefix(TORN)) <= last:
          paths.remove(path)


def warn_torn(path: paths.Path, reason: str) -> None:
  """Warns of a step that is not whole."""
  logging.warning(
      'Checkpoint %s is not whole (%s): falling back to the one before.',
      path, reason)


def item(path: paths.Path, name: str) -> dict[str, Any]:
  """One of a step's JSON items."""
  return json.loads((path / name / 'metadata').read_text())


def checksum(path: paths.Path) -> int:
  """CRC-32 of a file, read in pieces."""
  value = 0
  with path.open('rb') as file:
    while piece := file.read(1 << 24):
      value = zlib.crc32(piece, value)
  return value
