"""Counts of compiled programs, and what the folder of programs saved."""

import os
import threading
from typing import Callable, NamedTuple

import jax

_COMPILE = '/jax/core/compile/backend_compile_duration'
_SAVED = '/jax/compilation_cache/compile_time_saved_sec'
_LOAD = '/jax/compilation_cache/cache_retrieval_time_sec'


class Compiles(NamedTuple):
  """Programs that JAX has compiled or loaded.

  Attributes:
    programs: number of compiled programs.
    seconds: that this took.
    loaded: number of programs that were loaded instead.
    saved: seconds of compiling that this saved, as JAX reports them: whole
      seconds of each program, less those of loading it.
  """
  programs: int = 0
  seconds: float = 0.0
  loaded: int = 0
  saved: float = 0.0

  def since(self, before: 'Compiles') -> 'Compiles':
    """Returns what came after `before`."""
    return Compiles(*(a - b for a, b in zip(self, before)))

  def line(self) -> str:
    """Returns a line about them."""
    folder = jax.config.jax_compilation_cache_dir or ''
    home = os.path.expanduser('~')
    if folder.startswith(home + os.sep):
      folder = '~' + folder[len(home):]
    text = (f'Compiled {self.programs} program{"s" * (self.programs != 1)} in '
            f'{self.seconds:.1f} s')
    if self.loaded:
      return (f'{text}; {self.loaded} more came from {folder}, which saved '
              f'{max(self.saved, 0):.0f} s.')
    if folder and jax.config.jax_enable_compilation_cache:
      return f'{text}; the next start takes them from {folder}.'
    return f'{text}.'


_total = Compiles()
_lock = threading.Lock()


def _count(event: str, seconds: float, **_) -> None:
  """Adds an event of JAX; it comes from the thread that compiles."""
  global _total
  change = {
      # The time of every program, also of one that is loaded.
      _COMPILE: Compiles(1, seconds),
      _LOAD: Compiles(-1, -seconds, 1),
      _SAVED: Compiles(saved=seconds)}.get(event)
  if change:
    with _lock:
      _total = Compiles(*(a + b for a, b in zip(_total, change)))


jax.monitoring.register_event_duration_secs_listener(_count)


def total() -> Compiles:
  """Returns the count since this module was imported."""
  return _total


def first(note: Callable[[str], None]) -> Callable[[], Compiles]:
  """Makes a function that returns the count since now.

  Its first call is after the first step, and passes the line to `note`.
  """
  before, said = total(), []

  def count():
    found = total().since(before)
    if not said:
      said.append(True)
      note(found.line())
    return found

  return count
