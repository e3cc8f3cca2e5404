"""Phases of a run: what is being done, how much of it, and the time left.

Work that may take seconds opens a phase and counts in it:

  with phases.phase('loading the model', 290, 'tensors') as phase:
    ...
    phase.count()

or iterates over `counted(...)`. A display (`monitoring/progress.py`) shows the
phases of its thread, each inside of the one before. Without a display nobody
looks at them, and they cost microseconds.
"""

import contextlib
import threading
import time
from typing import Any, Callable, Iterable, Iterator, Sequence, TypeVar

T = TypeVar('T')
_local = threading.local()


class Phase:
  """A phase.

  Attributes:
    name: what is done in it.
    total: how many units of it; 0 if that is not known.
    unit: name of the units.
    done: units that are done.
    first: those that were done before it.
    start: when it began, of `time.monotonic`.
    poll: () -> `done`, for a display to call, where the work cannot count.
    apart: whether it is no part of the pace of the phases around it, because
      they do it only once.
  """

  def __init__(
      self, name: str, total: int = 0, unit: str = '', done: int = 0, *,
      poll: Callable[[], int] | None = None, apart: bool = False,
      paces: dict[Any, float] | None = None):
    """Begins a phase; see `phase`.

    Args:
      name, total, unit, done, poll, apart: see above.
      paces: seconds of a unit in the phases before, by (name, total) and by
        name.
    """
    self.name, self.total, self.unit, self.done = name, total, unit, done
    self.poll, self.apart = poll, apart
    self.start = self._counted = time.monotonic()
    self.first, self._left_out = done, 0.0
    self._paces = {} if paces is None else paces

  def count(self, done: int | None = None) -> None:
    """Sets the units that are done; by default, one more is."""
    self.done = self.done + 1 if done is None else done
    self._counted = time.monotonic() - self._left_out

  def passed(self) -> float:
    """Returns its seconds up to now."""
    return time.monotonic() - self.start

  def left(self) -> float | None:
    """Returns an estimate of the seconds left.

    The pace is that of the units done, else that of the phase of this name
    before, if possible one of this size. None if there is neither.
    """
    if self.total and self.done > self.first:
      pace = (self._counted - self.start) / (self.done - self.first)
    else:
      pace = self._paces.get(
          (self.name, self.total), self._paces.get(self.name))
    if pace is None:
      return None
    units, since = 1, self.start
    if self.total:
      units, since = self.total - self.done, self._counted
    return max(pace * units - (time.monotonic() - self._left_out - since), 0.0)

  def counts(self) -> str:
    """Returns a text: units done, time passed, time left."""
    text = clock(self.passed())
    if self.poll:
      self.count(self.poll())
    if self.total or self.done:
      of = f'/{self.total}' if self.total else ''
      text = f'{self.done}{of} {self.unit}'.rstrip() + f'  {text}'
    left = self.left()
    return text if left is None else f'{text}, {clock(left)} left'

  def note_pace(self) -> None:
    """Keeps its pace for the next phase of its name."""
    units = self.total - self.first if self.total else 1
    if self.total and self.done > self.first:
      units = self.done - self.first
    if units > 0:
      pace = (self.passed() - self._left_out) / units
      self._paces[self.name] = self._paces[self.name, self.total] = pace


def running() -> list[Phase]:
  """Returns the phases of this thread that are running, outermost first.

  The list is that which changes as phases begin and end.
  """
  if not hasattr(_local, 'running'):
    _local.running = []
  return _local.running


def begin(*args, **kwargs) -> Phase:
  """Begins a phase that `end` ends; `phase` has the arguments."""
  stack = running()
  new = Phase(*args, **kwargs, paces=stack[0]._paces if stack else None)
  stack.append(new)
  return new


def end(ended: Phase, failed: bool = False) -> None:
  """Ends a phase, and those inside of it that have not ended.

  Args:
    ended: from `begin`.
    failed: whether its work was not done.
  """
  stack = running()
  if ended not in stack:
    return  # with one around it
  if ended.apart:
    for around in stack:
      around._left_out += ended.passed()
  elif not (failed or ended.poll):
    ended.note_pace()
  del stack[stack.index(ended):]


@contextlib.contextmanager
def phase(
    name: str, total: int = 0, unit: str = '', done: int = 0, *,
    poll: Callable[[], int] | None = None,
    apart: bool = False) -> Iterator[Phase]:
  """Makes the body a phase.

  Args:
    name: what is done in it.
    total: how many units of it; 0 if that is not known.
    unit: name of the units, such as 'responses'.
    done: units done before.
    poll, apart: attributes of the `Phase`.

  Yields:
    The phase, to count in.
  """
  new = begin(name, total, unit, done, poll=poll, apart=apart)
  failed = True
  try:
    yield new
    failed = False
  finally:
    end(new, failed)


def counted(
    items: Iterable[T], name: str, unit: str = '', total: int | None = None,
) -> Iterator[T]:
  """Yields items in a phase that counts them.

  Args:
    items: any number.
    name: of the phase.
    unit: what they are, if the name does not say so.
    total: their number; by default their length, if they have one.
  """
  if total is None:
    total = len(items) if isinstance(items, Sequence) else 0
  with phase(name, total, unit) as new:
    for item in items:
      yield item
      new.count()


def clock(seconds: float) -> str:
  """Formats seconds as 1:05 or 2:00:31."""
  minutes, seconds = divmod(int(seconds + 0.5), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02}:{seconds:02}' if hours else (
      f'{minutes}:{seconds:02}')
