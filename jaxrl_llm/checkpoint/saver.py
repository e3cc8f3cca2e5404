"""Checkpoints of a run's state, written whole or not at all.

A directory per step holds `state` (arrays), `tree` (their shapes), `host` and
`config` (JSON), `metrics` (the score, if there is one) and `files.json` (size
and checksum of every file). Orbax writes into a temporary directory and renames
it at the end, so a killed run leaves whole steps and temporary files, never
half a step. The checksums detect later damage.

A damaged step is skipped with a warning; the run that continues renames it to
`torn-<step>`, until it has saved that step or a later one. A step that is to be
written anew is `replaced-<step>` meanwhile, and is used if that fails. A full
disk costs the checkpoint, not the run.

In a run of several processes all write their shards of the arrays; the first
one does the rest.
"""

import contextlib
import errno
import functools
import json
import logging as std_logging
import math
import sys
from typing import Any, Callable, Mapping, NamedTuple
import warnings

from absl import logging
import jax
import orbax.checkpoint as ocp

from jaxrl_llm.base import phases
from jaxrl_llm.checkpoint import files
from jaxrl_llm.checkpoint import tree as tree_lib
from jaxrl_llm.storage import paths

_TEMPORARY = files.TEMPORARY
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


@phases.phase('reading the checkpoint')
def restore(
    directory: paths.Text,
    like: Any,
    *,
    differs: Callable[[_Config], list[str]] | None = None,
    best: bool = False,
    partial: bool = False,
    channel: Any = files.ALONE,
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
    partial: `like` may leave out part of the saved state.
    channel: `channel.Channel` between the processes of the run, which all
      call this; the first one looks for damage. By default this one is alone.

  Returns:
    Restored, or None if there is no whole checkpoint.

  Raises:
    ValueError: the checkpoint has another config, or other arrays than `like`.
  """
  root = paths.absolute(directory)
  path = next(files.whole(root, best), None) if channel.first else None
  name = channel.gather(path and path.name)[0]
  if name is None:
    return None
  path = root / name
  config = files.item(path, 'config')
  lines = differs(config) if differs else []
  if lines:
    raise ValueError(
        f'Checkpoint {path} is of another config: {"; ".join(lines)}. '
        'Set it back, or choose another workdir.')
  try:
    state = tree_lib.read(
        path / 'state', files.item(path, 'tree'), like, partial)
  except ValueError as error:
    raise ValueError(f'Checkpoint {path}: {error}') from error
  return Restored(int(name), state, files.item(path, 'host'), config)


class Checkpointer:
  """Writer of a run's checkpoints; it keeps the newest ones and the best."""

  def __init__(
      self, directory: paths.Text, config: _Config, *, keep: int = 2,
      timeout: int = 600, channel: Any = files.ALONE):
    """Opens or makes a directory, and clears the remains of a killed run.

    Args:
      directory: holds the steps.
      config: the run's config, JSON-able, to be written into each step.
      keep: number of newest checkpoints to keep, at least 1; the one with the
        best score is kept besides.
      timeout: seconds that a save takes at most. If the storage fails in one
        process, the others wait as long for it.
      channel: see the function `restore`.
    """
    if keep < 1:
      raise ValueError(f'checkpoint.keep={keep}: keep at least 1.')
    self._root = paths.absolute(directory)
    self._config = json.loads(json.dumps(config))
    self._saving: int | None = None
    self._size = 0  # bytes of the save under way
    self._fresh = True  # whether Orbax knows which steps are there
    self._channel = channel
    self._first = channel.first
    if self._first:
      self._root.mkdir(parents=True, exist_ok=True)
    self._clear()
    for step in files.steps(self._root) if self._first else ():
      reason = files.fault(self._root / str(step), thorough=False)
      if reason:
        files.warn_torn(self._root / str(step), reason)
        files.set_aside(self._root, step)
    channel.gather()  # waits until all processes are here
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
                timeout_secs=timeout,
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
    found = restore(self._root, like, channel=self._channel, **options)
    for step in files.steps(self._root) if self._first else ():
      if found is None or step > found.step:
        files.set_aside(self._root, step)
    self._channel.gather()
    self._manager.reload()
    return found

  def save(
      self, step: int, state: Any, host: Mapping[str, Any], *,
      score: float | None = None,  # pylint: disable=redefined-outer-name
      again: bool = False) -> None:
    """Starts to write a checkpoint; returns once the arrays are copied.

    The arrays may be donated and the dictionary changed as soon as this
    returns. If the storage is full, failing or away, here or in the background,
    a warning says so, this step is given up, and older ones stay whole.

    Args:
      step: its number; a step that is there already is left as it is.
      state: tree of jax.Array, NumPy arrays and Python numbers.
      host: JSON-able dictionary.
      score: the best checkpoint has the highest; None or NaN does not
        compete.
      again: write the step anew if it is there already.

    Raises:
      TypeError: `host` is not JSON-able.
    """
    host = json.loads(json.dumps(host))  # written later: take it as it is now
    arrays, tree = tree_lib.encode(state)
    self.wait()
    self._saving = step
    self._size = sum(array.nbytes for array in arrays.values())
    try:
      if not self._ready(step, again):
        return
    except Exception as error:  # pylint: disable=broad-exception-caught
      self._warn(error)  # Storage that is away may take minutes to say so.
      return
    compete = score is not None and math.isfinite(score)
    args = ocp.args
    try:
      with jax.transfer_guard('allow'), files.saving(self._root, self._size):
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
      with files.saving(self._root, self._size):
        self._manager.wait_until_finished()
    except Exception as error:  # pylint: disable=broad-exception-caught
      # Only storage is at work in the background, and each kind of storage
      # raises errors of its own.
      self._give_up(error)

  def check(self, step: int) -> None:
    """Waits, and raises OSError if a step is not on disk."""
    self.wait()
    # Other hosts may see the files of the first process some seconds later.
    there = not self._first or step in files.steps(self._root)
    if not self._channel.gather(there)[0]:
      raise OSError(
          f'Step {step} could not be saved in {self._root}: make room, and run '
          'the same command again.')

  def close(self) -> None:
    """Waits, and releases the threads; a failure is a warning, as in `save`.
    """
    self.wait()
    try:
      self._manager.close()
    except Exception as error:  # pylint: disable=broad-exception-caught
      self._give_up(error)
    with contextlib.suppress(Exception):  # else before the next save
      self._clear()

  def _sign(self) -> None:
    """Writes `files.json`, just before the step gets its name."""
    if not self._first:
      return
    temporary = self._root.glob(f'{self._saving}{_TEMPORARY}*')
    path = next(temporary, self._root / str(self._saving))
    bucket = paths.in_bucket(path)  # Its large files are not read again.
    paths.write_whole(path / files.FILES, json.dumps({
        name: (size, None if bucket and size >= files.SMALL
               else files.checksum(path / name))
        for name, size in paths.sizes(path).items() if '/' in name}))

  def _ready(self, step: int, again: bool) -> bool:
    """Clears the way for a save; returns whether the step is to be written.

    Raises in all processes if the storage fails in one.
    """
    def look():
      # Again: writers may outlive the failure of their save, and so may errors.
      self._clear()
      with contextlib.suppress(Exception):
        self._manager.check_for_errors()
      if not self._fresh:
        self._reload()
      known = step in self._manager.all_steps()
      if known and again:
        self._fresh = False
        if self._first:
          files.set_aside(self._root, step, files.REPLACED)
      return known

    known = self._agreed(look)
    if known and again:
      self._agreed(self._reload)
    return again or not known

  def _agreed(self, call: Callable[[], Any]) -> Any:
    """Returns the first process's result of a call to the storage.

    Raises in all processes if it fails in one: no process may wait for others
    that have given up.
    """
    value = failed = None
    try:
      value = call()
    except Exception as error:  # pylint: disable=broad-exception-caught
      failed = error
    found = self._channel.gather((value, failed and repr(failed)))
    said = [text for _, text in found if text]
    if said:
      raise failed or OSError(said[0])
    return found[0][0]

  def _reload(self) -> None:
    """Makes Orbax look which steps are there."""
    self._fresh = False
    self._manager.reload()
    self._fresh = True

  def _give_up(self, error: Exception) -> None:
    """Reports a failed save, and clears its remains."""
    self._fresh = False
    with contextlib.suppress(Exception):  # else before the next save
      self._clear()
      self._reload()
    self._warn(error)

  def _warn(self, error: Exception) -> None:
    """Reports a failed save."""
    older = max((step for step in self._manager.all_steps()
                 if self._fresh or step != self._saving), default=None)
    # Other processes than the first one show errors alone.
    (logging.warning if self._first else logging.error)(
        'The checkpoint of step %s could not be written (%s). The run goes on; '
        'its newest checkpoint is %s.', self._saving, _reason(error),
        'none' if older is None else f'of step {older}')

  def _clear(self) -> None:
    """Mends the folders of unfinished saves; none may be under way."""
    if not self._first:
      return
    with paths.explained(self._root):
      for path in [*self._root.glob(f'*{_TEMPORARY}*'), *(
          # In a bucket, Orbax writes under the final name.
          self._root / str(step) for step in files.steps(self._root)
          if paths.in_bucket(self._root)
          and not (self._root / str(step) / files.FILES).exists())]:
        paths.remove(path)
    files.settle(self._root)


def _reason(error: Exception) -> str:
  """An error of the operating system or of TensorStore, in a few words."""
  if isinstance(error, OSError) and error.errno is None and error.__cause__:
    error = error.__cause__  # `paths.explained` also says what to do.
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
