"""Ends of a program: an error is one sentence and an exit code other than 0.

Errors that are faults of this package keep their traceback. A request to stop
is no error.
"""

import contextlib
import errno
import os
import signal
import sys
import threading
import traceback
from typing import Any, Iterator, TextIO

import jax

from jaxrl_llm.base import plain, process_state
from jaxrl_llm.storage import paths
from jaxrl_llm.types import Stopped

_NO_MEMORY = 'RESOURCE_EXHAUSTED'
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_in_program: list[int] = []  # within `program`, its `stopped_code`
# Within `stoppable`: the handler of the run's, and of each signal that before.
_handling: list[tuple[Any, dict[int, Any]]] = []
_masks = threading.local()  # of a thread that forks, the signals it held back


@contextlib.contextmanager
def program(interrupted: str, stopped_code: int = 0) -> Iterator[None]:
  """Ends the program with exit code 1 and a sentence if its body fails.

  From here on, Ctrl-C raises KeyboardInterrupt, unless SIGINT is ignored, and
  stdout gets '?' for characters that it does not have.

  Args:
    interrupted: the sentence after an interrupt by the user.
    stopped_code: exit code if the body stops as it was asked to. If it is not
      0, it is also that of a body that could not stop in time.
  """
  if hasattr(sys.stdout, 'reconfigure'):  # a notebook's has no such method
    sys.stdout.reconfigure(errors='replace')
  _in_program.append(stopped_code)
  try:
    with process_state.alone():
      yield
  except KeyboardInterrupt:
    sys.exit(interrupted)
  except Stopped as stopped:
    _write_last(f'{stopped}\n')
    sys.exit(stopped_code)
  except (OSError, ValueError, FloatingPointError, MemoryError,
          jax.errors.JaxRuntimeError) as error:
    if isinstance(error, jax.errors.JaxRuntimeError) and (
        not str(error).startswith(_NO_MEMORY)):
      raise
    if isinstance(error, BrokenPipeError):
      _leave(sys.stdout)
    sys.exit(sentence(error))
  except SystemExit as end:
    if isinstance(end.__context__, BrokenPipeError):  # of rich
      _leave(sys.stdout)
      sys.exit(sentence(end.__context__))
    # No part of this package calls it: without a word, the program would seem
    # to be done.
    place = traceback.extract_tb(end.__traceback__)[-1]
    sys.exit(f'sys.exit({plain.shown(end.code)}) was called in '
             f'{place.filename}, line {place.lineno}: remove the call.')
  finally:
    _in_program.pop()
    # A process among many ends without Python's own cleaning.
    paths.forget_copies()


@contextlib.contextmanager
def stoppable(grace: float) -> Iterator[threading.Event]:
  """Turns SIGTERM, and the first SIGINT, into a request to stop.

  After the body nothing is left to stop: a `program` then ignores both signals
  until its end, so that it exits as it should; elsewhere their handlers return.

  If the body has not ended `grace` seconds after the request, the process ends
  with exit code 1. A second SIGINT is a KeyboardInterrupt. Other threads than
  the main one cannot handle signals: there this does nothing. A process that is
  forked in the body has the handlers from before it.

  Args:
    grace: seconds.

  Yields:
    An event that is set by the first signal.
  """
  asked = threading.Event()
  if threading.current_thread() is not threading.main_thread():
    yield asked
    return
  late = threading.Timer(grace, _too_late, [grace])
  late.daemon = True
  seen = []

  def handle(number, _):
    # Another signal may come while the timer starts.
    seen.append(number)
    if len(seen) == 1:
      late.start()
      asked.set()
      plain.say_now('Stopping: the state is saved after this phase.')
    elif number == signal.SIGINT:
      raise KeyboardInterrupt

  before = {
      number: signal.signal(number, handle)
      for number in (signal.SIGTERM, signal.SIGINT)}
  _handling.append((handle, before))
  try:
    yield asked
  finally:
    late.cancel()
    _handling.pop()
    for number, old in before.items():
      signal.signal(number, signal.SIG_IGN if _in_program else old)


def _hold_back() -> None:
  """Holds back the signals until a forked process has its own handlers."""
  _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, (
      signal.SIGTERM, signal.SIGINT) if _handling else ())


def _let_pass() -> None:
  signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _as_before() -> None:
  """Gives a forked process the handlers from before `stoppable`."""
  for handle, before in reversed(_handling):
    for number, old in before.items():
      if signal.getsignal(number) is handle:
        signal.signal(number, old)
  _handling.clear()
  _let_pass()


os.register_at_fork(
    before=_hold_back, after_in_parent=_let_pass, after_in_child=_as_before)


def _too_late(grace: float) -> None:
  plain.say_now(
      f'The run could not stop within checkpoint.grace={grace:g} s. The same '
      'command goes on from the last checkpoint, if there is one.')
  os._exit((_in_program and _in_program[-1]) or 1)


def sentence(error: BaseException) -> str:
  """Returns the sentence about an error, and what to do about lack of room."""
  if isinstance(error, (MemoryError, jax.errors.JaxRuntimeError)):
    first = plain.text(str(error)).partition('\n')[0][:200]
    return (f'The memory is full ({first or "of this machine"}): lower '
            'sampling.slots, learner.tokens_per_microbatch or the size of the '
            'model.')
  if isinstance(error, BrokenPipeError):
    return 'The output was closed before its end; all files are written.'
  if not isinstance(error, OSError) or error.strerror is None:
    return plain.text(paths.as_given(str(error)))
  where = paths.as_given(plain.line(error.filename))
  if error.errno in _FULL:
    return (f'The disk is full{where and f" at {where}"}: make room, and run '
            'the same command again.')
  return f'{where or "The system"}: {plain.line(error.strerror)}.'


def _write_last(text: str) -> None:
  """Writes text to stderr; streams that are closed do not change the exit code.
  """
  for stream, last in ((sys.stderr, text), (sys.stdout, '')):
    try:
      if stream:  # None where the program began without it
        stream.write(last)
        stream.flush()
    except (OSError, ValueError):
      _leave(stream)


def _leave(stream: TextIO) -> None:
  """Keeps Python from writing to a closed pipe when it ends."""
  with contextlib.suppress(OSError, ValueError):  # it is not open any more
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
