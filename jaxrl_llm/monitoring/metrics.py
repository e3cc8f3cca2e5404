"""Files of metrics and samples.

`metrics.jsonl` has one JSON object per step, and `samples.jsonl` one per
recorded response. `tensorboard/` has the metrics as event files. A number that
is not finite is written as null, because JSON has no NaN. A resumed run drops
the rows at or after its first step, so no step is written twice. If the disk is
full, rows are lost, but the run continues.
"""

import contextlib
import errno
import json
import os
import pathlib
import time
from typing import Any, Iterable, Mapping

from absl import logging

from jaxrl_llm.base import plain
from jaxrl_llm.monitoring import trackers
from jaxrl_llm.storage import paths

Row = dict[str, float]


class _Lost:
  """Warning about lost rows, logged once per run instead of at every step."""

  def __init__(self):
    self._said = False

  def warn(self, where: str, error: OSError) -> None:
    if not self._said:
      logging.warning(
          'Could not write to %s (%s): the run continues without the rows that '
          'cannot be written.', where, error.strerror)
    self._said = True


class JsonLines:
  """File of JSON objects, one per line, written without buffering."""

  def __init__(
      self, path: str | os.PathLike[str], step: int,
      lost: _Lost | None = None):
    """Opens the file.

    Args:
      path: the file; created if needed.
      step: first step to be written. Objects at or after it are dropped, and so
        is a partial last line of a killed run.
    """
    path = pathlib.Path(path)
    kept = [row for row in read(path) if row['step'] < step]
    paths.write_whole(path, ''.join(_line(row) for row in kept))
    self._file = path.open('ab', buffering=0)
    self._lost = lost or _Lost()

  def write(self, row: Mapping[str, Any]) -> None:
    """Appends one whole object, or warns. Writes NaN and infinity as null."""
    line, end = _line(row).encode(), self._file.tell()
    try:
      if self._file.write(line) < len(line):
        raise OSError(errno.ENOSPC, 'the disk is full')
    except OSError as error:
      with contextlib.suppress(OSError):
        self._file.truncate(self._file.seek(end))
      self._lost.warn(self._file.name, error)

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """Reads a file of JSON lines, without a partial last line.

  A line whose JSON is no object with a number as its step is left out, with a
  warning.

  Raises:
    ValueError: a line before the last is not JSON.
  """
  path = paths.place(path)
  with paths.explained(path):
    content = path.read_bytes() if path.exists() else b''
  lines = content.decode('utf8', 'replace').split('\n')
  rows, others = [], []
  for number, line in enumerate(lines[:-1], 1):  # the last line is partial
    try:
      row = json.loads(line)
    except (ValueError, RecursionError):
      if number < len(lines) - 1:
        raise ValueError(
            f'{path}:{number} is not JSON; remove the line.') from None
      continue
    step = row.get('step') if isinstance(row, dict) else None
    is_number = isinstance(step, (int, float)) and not isinstance(step, bool)
    if is_number and step == step:  # NaN differs from itself
      rows.append(row)
    else:
      others.append(number)
  if others:
    logging.warning(
        '%s: %d lines are no rows with a step and are left out, the first is '
        'line %d.', path, len(others), others[0])
  return rows


class Writer:
  """Writes a run's metrics and samples to its directory."""

  def __init__(
      self, workdir: str | os.PathLike[str], step: int = 0, *,
      tensorboard: bool = True, config: Mapping[str, Any] | None = None,
      run: paths.Text = '', **projects: str | None):
    """Opens the files.

    Args:
      workdir: folder on disk; created if needed.
      step: first step to be written; rows at or after it are dropped.
      tensorboard: whether to write event files.
      config: the run's config, for the services.
      run: folder of the run, if that is in a bucket.
      **projects: where to send the metrics, by names in `trackers.TRACKERS`.

    Raises:
      ValueError: the library of a service is not installed.
    """
    workdir = pathlib.Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    lost = _Lost()
    self._metrics = JsonLines(workdir / 'metrics.jsonl', step, lost)
    self._samples = JsonLines(workdir / 'samples.jsonl', step, lost)
    self._events = _Events(workdir / 'tensorboard', step, lost) if (
        tensorboard) else None
    self._trackers = trackers.Trackers(
        projects, workdir, paths.absolute(run or workdir), config or {},
        is_new=not step)

  def write(self, step: int, row: Mapping[str, Any]) -> None:
    """Writes the metrics of a step, all of them numbers, to all outputs."""
    row = plain.json(row)
    self._metrics.write({'step': step, **row})
    numbers = {k: v for k, v in row.items() if v is not None}
    if self._events:
      self._events.write(step, numbers)
    self._trackers.log(step, numbers)

  def samples(self, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes recorded responses, each with its 'step'."""
    for record in records:
      self._samples.write(record)

  def close(self) -> None:
    """Closes all files."""
    self._metrics.close()
    self._samples.close()
    if self._events:
      self._events.close()
    self._trackers.close()


class NoWriter:
  """Writer of the processes that write nothing."""

  def write(self, step: int, row: Mapping[str, Any]) -> None:
    """Does nothing."""

  def samples(self, records: Iterable[Mapping[str, Any]]) -> None:
    """Does nothing."""

  def close(self) -> None:
    """Does nothing."""


class _Events:
  """TensorBoard event file, one event for all numbers of a step.

  tensorboardX's SummaryWriter takes ten times as long, and waits forever after
  its thread has met a full disk, so it is not used.
  """

  def __init__(self, directory: pathlib.Path, step: int, lost: _Lost):
    """Opens a new event file; TensorBoard ignores older events from `step` on.
    """
    # Slow to import where PyTorch is installed.
    from tensorboardX import event_file_writer
    from tensorboardX.proto import event_pb2, summary_pb2
    self._event, self._summary = event_pb2.Event, summary_pb2.Summary
    self._lost = lost
    directory.mkdir(parents=True, exist_ok=True)
    self._file = event_file_writer.EventsWriter(
        str(directory / 'events'), filename_suffix=f'.{time.time_ns()}')
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._file.write_event(self._event(step=step, session_log=start))

  def write(self, step: int, numbers: Row) -> None:
    values = [self._summary.Value(tag=name, simple_value=value)
              for name, value in numbers.items()]
    try:
      self._file.write_event(self._event(
          wall_time=time.time(), step=step,
          summary=self._summary(value=values)))
      self._file.flush()
    except OSError as error:
      self._lost.warn('the event file', error)

  def close(self) -> None:
    try:
      self._file.close()
    except OSError as error:
      self._lost.warn('the event file', error)


def _line(row: Mapping[str, Any]) -> str:
  return json.dumps(
      plain.json(row), allow_nan=False, ensure_ascii=False) + '\n'
