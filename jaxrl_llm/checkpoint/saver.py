"""Checkpoints of a run's state, written whole or not at all.

A directory per step holds `state` (arrays), `tree` (their shapes), `host` and
`config` (JSON), `metrics` (the score, if there is one) and `files.json` (size
and checksum of every file). Orbax writes into a temporary directory and renames
it at the end, so a killed run leaves whole steps and temporary files, never
half a step. The checksums detect later damage.

A damaged step is skipped with a warning; the run that continues renames it to
`torn-<step>`. A full disk costs the checkpoint, not the run.
"""

import contextlib
import errno
import functools
import hashlib
import json
import logging as std_logging
import math
import os
import pathlib
import shutil
import sys
from typing import Any, Callable, Iterator, Mapping, NamedTuple
import warnings
import zlib

from absl import logging
import jax
import orbax.checkpoint as ocp

from jaxrl_llm import workdir as workdir_lib
from jaxrl_llm.checkpoint import tree as tree_lib

_FILES = 'files.json'
_TEMPORARY = '.orbax-checkpoint-tmp'
_Path = str | os.PathLike[str]
_Config = dict[str, Any]


class Restored(NamedTuple):
  """Content of a checkpoint.

  Attributes:
    step: its step.
    state: the arrays, in the structure and layout of `like`.
    host: the JSON-able dictionary saved with them.
    config: the config of the run that wrote it.
  """
  step: int
  state: Any
  host: dict[str, Any]
  config: _Config


def steps(directory: _Path) -> list[int]:
  """Returns the steps that have a directory, ascending, damaged or not."""
  root = pathlib.Path(directory)
  names = [p.name for p in root.iterdir()] if root.is_dir() else []
  return sorted(int(name) for name in names if name.isdecimal())


def score(directory: _Path, step: int) -> float | None:
  """Returns the score saved with a step, or None."""
  path = pathlib.Path(directory, str(step), 'metrics', 'metrics')
  return json.loads(path.read_text())['score'] if path.exists() else None


def digest(directory: _Path, step: int) -> str:
  """Returns sixteen hex digits that identify the content of a step."""
  path = pathlib.Path(directory, str(step), _FILES)
  return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def fault(path: pathlib.Path, thorough: bool = True) -> str | None:
  """Describes the damage of a step's directory; None if it is whole.

  Args:
    path: the directory.
    thorough: compare the checksum of every file; else the checksums of small
      files and the sizes of the others.
  """
  try:
    for name, (size, checksum) in json.loads(
        (path / _FILES).read_text()).items():
      found = (path / name).stat().st_size
      if found != size:
        return f'{name} has {found} bytes instead of {size}'
      if (thorough or size < 1 << 16) and _checksum(path / name) != checksum:
        return f'{name} was altered after it was written'
  except FileNotFoundError as error:
    return f'{pathlib.Path(error.filename).relative_to(path)} is missing'
  except (ValueError, TypeError, AttributeError):
    return f'{_FILES} is unreadable'
  return None


def restore(
    directory: _Path,
    like: Any,
    *,
    differs: Callable[[_Config], list[str]] | None = None,
    best: bool = False,
    partial: bool = False,
) -> Restored | None:
  """Reads the newest (or best) whole checkpoint; writes nothing.

  Args:
    directory: holds the steps.
    like: the tree to fill. A jax.Array, or a jax.ShapeDtypeStruct with a
      sharding, is restored as a jax.Array in that layout, whatever layout it
      was saved in. NumPy arrays, Python numbers and typed PRNG keys are
      restored as such.
    differs: config of the checkpoint -> phrases that name its conflicts with
      this run; None accepts any config.
    best: prefer the best score to the newest step.
    partial: `like` may leave out part of what was saved.

  Returns:
    Restored, or None if there is no whole checkpoint.

  Raises:
    ValueError: the checkpoint has another config, or other arrays than `like`.
  """
  for path in _whole(pathlib.Path(directory).absolute(), best):
    config = _item(path, 'config')
    lines = differs(config) if differs else []
    if lines:
      raise ValueError(
          f'Checkpoint {path} is of another config: {"; ".join(lines)}. '
          'Set it back, or choose another workdir.')
    try:
      state = tree_lib.read(
          path / 'state', _item(path, 'tree'), like, partial)
    except ValueError as error:
      raise ValueError(f'Checkpoint {path}: {error}') from error
    return Restored(int(path.name), state, _item(path, 'host'), config)
  return None


class Checkpointer:
  """Writer of a run's checkpoints; it keeps the newest ones and the best."""

  def __init__(
      self, directory: _Path, config: _Config, *, keep: int = 2):
    """Opens a directory, made if needed, and clears what a killed run left.

    Args:
      directory: holds the steps.
      config: the run's config, JSON-able, to be written into each step.
      keep: number of newest checkpoints to keep, at least 1; the one with the
        best score is kept besides.
    """
    if keep < 1:
      raise ValueError(f'checkpoint.keep={keep}: keep at least 1.')
    self._root = pathlib.Path(directory).absolute()
    self._config = json.loads(json.dumps(config))
    self._saving: int | None = None
    self._root.mkdir(parents=True, exist_ok=True)
    self._clear()
    for step in steps(self._root):
      reason = fault(self._root / str(step), thorough=False)
      if reason:
        _warn_torn(self._root / str(step), reason)
        self._set_aside(step)
    rules = ocp.checkpoint_managers
    self._manager = ocp.CheckpointManager(
        self._root,
        options=ocp.CheckpointManagerOptions(
            preservation_policy=rules.AnyPreservationPolicy([
                rules.LatestN(keep),
                rules.BestN(get_metric_fn=lambda metrics: metrics['score'],
                            n=1, keep_checkpoints_without_metrics=False)]),
            best_fn=lambda metrics: metrics['score'],
            async_options=ocp.AsyncOptions(
                post_finalization_callback=self._sign,
                # Writers would wait for minutes for a directory that a full
                # disk refused to their helper thread.
                create_directories_asynchronously=False)))
    # What they have to say, `_give_up` says in one line.
    std_logging.getLogger('absl').addFilter(_not_orbax)
    std_logging.getLogger('asyncio').addFilter(_not_a_writer)
    warnings.filterwarnings(
        'ignore', "coroutine 'async_serialize.*' was never awaited")
    if getattr(sys.unraisablehook, 'func', None) is not _unraisable:
      sys.unraisablehook = functools.partial(_unraisable, sys.unraisablehook)

  def restore(self, like: Any, **options: Any) -> Restored | None:
    """Reads the newest whole checkpoint, to go on from it.

    Newer steps, which are not whole, are set aside, so that the run can write
    them again.

    Args:
      like: the tree to fill; see the function `restore`.
      **options: those of the function `restore`.

    Returns:
      Restored, or None if there is none.
    """
    self.wait()
    found = restore(self._root, like, **options)
    for step in steps(self._root):
      if found is None or step > found.step:
        self._set_aside(step)
    self._manager.reload()
    return found

  def save(
      self, step: int, state: Any, host: Mapping[str, Any], *,
      score: float | None = None) -> None:  # pylint: disable=redefined-outer-name
    """Starts to write a checkpoint; returns once the arrays are copied.

    The arrays may be donated and the dictionary changed as soon as this
    returns. If the disk is full or failing, here or in the background, a
    warning says so, this step is given up, and older ones stay whole.

    Args:
      step: its number; a step that is there already is left as it is.
      state: tree of jax.Array, NumPy arrays and Python numbers.
      host: JSON-able dictionary.
      score: what the best checkpoint has most of; None or NaN does not
        compete.

    Raises:
      TypeError: `host` is not JSON-able.
    """
    host = json.loads(json.dumps(host))  # written later: take it as it is now
    arrays, tree = tree_lib.encode(state)
    self.wait()
    # Again: writers may outlive the failure of their save, and so may errors.
    self._clear()
    with contextlib.suppress(Exception):
      self._manager.check_for_errors()
    if step in self._manager.all_steps():
      return
    compete = score is not None and math.isfinite(score)
    self._saving = step
    args = ocp.args
    try:
      with jax.transfer_guard('allow'):
        self._manager.save(
            step, force=True,
            args=args.Composite(
                state=args.PyTreeSave(arrays), tree=args.JsonSave(tree),
                host=args.JsonSave(host), config=args.JsonSave(self._config)),
            metrics={'score': float(score)} if compete else None)
    except Exception as error:  # pylint: disable=broad-exception-caught
      self._give_up(error)  # as in `wait`

  def wait(self) -> None:
    """Waits until the last save is on disk, or warns that it is not."""
    try:
      self._manager.wait_until_finished()
    except Exception as error:  # pylint: disable=broad-exception-caught
      # Only storage is at work in the background, and each kind of storage
      # raises errors of its own.
      self._give_up(error)

  def close(self) -> None:
    """Waits, and releases the threads; what fails is a warning, as in `save`.
    """
    self.wait()
    try:
      self._manager.close()
    except Exception as error:  # pylint: disable=broad-exception-caught
      self._give_up(error)

  def _sign(self) -> None:
    """Writes `files.json`, just before the step gets its name."""
    temporary = self._root.glob(f'{self._saving}{_TEMPORARY}*')
    path = next(temporary, self._root / str(self._saving))
    files = [p for p in sorted(path.glob('*/**/*')) if p.is_file()]
    (path / _FILES).write_text(json.dumps({
        str(p.relative_to(path)): (p.stat().st_size, _checksum(p))
        for p in files}))

  def _give_up(self, error: Exception) -> None:
    """Reports a failed save."""
    self._clear()
    self._manager.reload()
    older = self._manager.latest_step()
    logging.warning(
        'The checkpoint of step %s could not be written (%s). The run goes on; '
        'its newest checkpoint is %s.', self._saving, _reason(error),
        'none' if older is None else f'of step {older}')

  def _clear(self) -> None:
    """Removes what unfinished saves left; none may be under way."""
    for path in self._root.glob(f'*{_TEMPORARY}*'):
      shutil.rmtree(path, ignore_errors=True)

  def _set_aside(self, step: int) -> None:
    target = self._root / f'torn-{step}'
    shutil.rmtree(target, ignore_errors=True)
    (self._root / str(step)).rename(target)


def rescue(
    workdir: _Path, describe: Callable[[pathlib.Path], None], config: _Config,
    step: int, state: Any, host: Mapping[str, Any]) -> str:
  """Saves the state of a run whose workdir is gone: there again, or beside it.

  Args:
    workdir: of the run.
    describe: writes into a folder what else a run needs to go on.
    config: see `Checkpointer`.
    step: see `Checkpointer.save`, as `state` and `host`.
    state: to be saved.
    host: saved with it.

  Returns:
    A sentence that says where the state is.
  """
  gone = f'workdir={workdir} was removed or moved during the run'
  folder = pathlib.Path(workdir).absolute()
  for place in (folder, pathlib.Path(f'{folder}-saved')):
    try:
      with workdir_lib.held(place):
        if steps(place / 'checkpoints'):
          continue  # of another run
        describe(place)
        with contextlib.closing(
            Checkpointer(place / 'checkpoints', config)) as saver:
          saver.save(step, state, host)
    except (OSError, ValueError):
      continue
    if steps(place / 'checkpoints'):
      return (f'{gone}: the state of step {step} is saved, continue with '
              f'--config.workdir={place}.')
  return (f'{gone}, and the state of step {step} could not be saved beside it: '
          'start again in a folder that stays.')


def _whole(root: pathlib.Path, best: bool) -> Iterator[pathlib.Path]:
  """Directories of whole steps, the one to restore first; warns of others."""
  def worth(step):
    path = root / str(step)
    value = score(root, step) if best and not fault(path, False) else None
    return -math.inf if value is None else value, step

  for step in sorted(steps(root), key=worth, reverse=True):
    reason = fault(root / str(step))
    if reason:
      _warn_torn(root / str(step), reason)
    else:
      yield root / str(step)


def _warn_torn(path: pathlib.Path, reason: str) -> None:
  logging.warning(
      'Checkpoint %s is not whole (%s): falling back to the one before.',
      path, reason)


def _reason(error: Exception) -> str:
  """An error of the operating system or of TensorStore, in a few words."""
  text = ' '.join(str(error).split())
  full = getattr(error, 'errno', None) == errno.ENOSPC or (
      text.startswith('RESOURCE_EXHAUSTED'))
  return 'the disk is full' if full else text[:200]


def _not_orbax(record: std_logging.LogRecord) -> bool:
  return 'orbax' not in record.pathname


def _not_a_writer(record: std_logging.LogRecord) -> bool:
  """False for a failed save's other writers, reported when collected."""
  text = record.getMessage()
  return _TEMPORARY not in text and not (
      'orbax' in text and record.exc_info
      and isinstance(record.exc_info[1], OSError))


def _unraisable(report: Callable[[Any], None], failure: Any) -> None:
  """Reports a failure unless it is of a failed save's other writers.

  They end after the event loop that waited for them.
  """
  if str(failure.exc_value) != 'Event loop is closed':
    report(failure)


def _item(path: pathlib.Path, name: str) -> dict[str, Any]:
  """One of a step's JSON items."""
  return json.loads((path / name / 'metadata').read_text())


def _checksum(path: pathlib.Path) -> int:
  """CRC-32 of a file, read in pieces."""
  value = 0
  with path.open('rb') as file:
    while piece := file.read(1 << 24):
      value = zlib.crc32(piece, value)
  return value
