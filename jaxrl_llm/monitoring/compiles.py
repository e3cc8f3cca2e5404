"""Compiles: which program, how many so far, what the folder of them saved.

JAX tells when it begins and ends to trace and to compile a program. Each is a
phase of the thread that compiles; see `phases.py`.
"""

import os
import threading
from typing import Callable, NamedTuple, Sequence

import jax

from jaxrl_llm.base import phases

_COMPILE = '/jax/core/compile/backend_compile_duration'
_VERBS = {
    '/jax/core/compile/jaxpr_trace_duration': 'tracing',
    '/jax/core/compile/jaxpr_to_mlir_module_duration': 'lowering',
    _COMPILE: 'compiling'}
_WORDS = {'sharded_generate': 'sampler'}  # Other functions have good names.
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
            f'{self.seconds:.1f} s (threads added up)')
    if self.loaded:
      return (f'{text}; {self.loaded} more came from {folder}, which saved '
              f'{max(self.saved, 0):.0f} s.')
    if folder and jax.config.jax_enable_compilation_cache:
      return f'{text}; the next start takes them from {folder}.'
    return f'{text}.'


class _Thread(threading.local):
  """Compilations of a thread.

  Attributes:
    phase: of the outermost event that is under way, or None.
    events: number of those under way; a program that is traced may compile
      others, for its constants.
    expected: names of the large programs, in their order.
    next: number of the first of them that has not been compiled.
  """
  phase: phases.Phase | None = None
  events = 0
  expected: Sequence[str] = ()
  next = 0


_total = Compiles()
_lock = threading.Lock()
_thread = _Thread()


def expect(programs: Sequence[str]) -> None:
  """Announces large programs, so that they are shown as `2 of 5`.

  Args:
    programs: names of their functions, in the order in which this thread will
      compile them. Some may never be compiled.
  """
  _thread.expected, _thread.next = tuple(programs), 0


def _begin(event: str, _: float, fun_name: str = '', **__) -> None:
  """Begins the phase of an event of JAX."""
  if event not in _VERBS:
    return
  _thread.events += 1
  if _thread.events > 1:
    return
  name = fun_name.removeprefix('jit(').rstrip(')').strip('_<>')
  number = ''
  if name in _thread.expected[_thread.next:]:
    at = _thread.expected.index(name, _thread.next) + 1
    number = f' ({at} of {len(_thread.expected)})'
    if event == _COMPILE:
      _thread.next = at
  _thread.phase = phases.begin(
      f'{_VERBS[event]} {_WORDS.get(name, name)}{number}', apart=True)


def _count(event: str, seconds: float, **_) -> None:
  """Adds an event of JAX; it comes from the thread that compiles."""
  global _total
  if event in _VERBS and _thread.events:
    _thread.events -= 1
    if not _thread.events:
      phases.end(_thread.phase)
  change = {
      # The time of every program, also of one that is loaded.
      _COMPILE: Compiles(1, seconds),
      _LOAD: Compiles(-1, -seconds, 1),
      _SAVED: Compiles(saved=seconds)}.get(event)
  if change:
    with _lock:
      _total = Compiles(*(a + b for a, b in zip(_total, change)))


jax.monitoring.register_event_duration_secs_listener(_count)
jax.monitoring.register_scalar_listener(_begin)


def total() -> Compiles:
  """Returns the count since this module was imported."""
  return _total


def first(note: Callable[[str], None]) -> Callable[[], Compiles]:
  """Makes a function that returns the count since now.

  Its first call is after the first step, and passes the line to `note`.
  """
  before, said = total(), []

  def count():
    compiled = total().since(before)
    if not said:
      said.append(True)
      note(compiled.line())
    return compiled

  return count
