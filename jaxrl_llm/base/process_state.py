"""The process of a run while the user's own code is at work in it.

A reward function may fork, change the folder, set handlers of signals or close
the output, as programs do that judge other programs. What belongs to the run is
as before once the code has returned, and a forked process never goes on as the
run.
"""

import contextlib
import os
import resource
import signal
import sys
import threading
import traceback
from typing import Any, Iterator

_SIGNALS = signal.SIGTERM, signal.SIGINT  # they stop a run
_LIMITS = [getattr(resource, f'RLIMIT_{name}') for name in (
    'AS', 'DATA', 'STACK', 'FSIZE', 'CPU', 'NOFILE', 'NPROC')
           if hasattr(resource, f'RLIMIT_{name}')]
_at_work: list[bool] = []  # has an entry within `code`
# The folder that the user's code changed to, and the run's own at that time.
_folders: list[str] = []


@contextlib.contextmanager
def alone() -> Iterator[None]:
  """Ends a process that was forked in the body at the end of the body.

  Its exit code is that of its SystemExit, or 1 with the traceback of another
  error. No `finally` around the body runs in it, and no function of `atexit`.
  """
  process, error = os.getpid(), None
  try:
    yield
  except BaseException as raised:
    error = raised
    raise
  finally:
    if os.getpid() != process:
      _end(error)


@contextlib.contextmanager
def code() -> Iterator[None]:
  """Keeps what belongs to the run as it is while the user's code is at work.

  This is the folder (the user's code finds the one that it changed to when it
  is at work again), the handlers of the signals that stop a run, alarms, soft
  limits, standard input, output and error, and that JAX's numbers have 32 bits.
  A process that was forked in the body ends with it; see `alone`.
  """
  with alone():
    if _at_work:
      yield
      return
    _at_work.append(True)
    try:
      with _folder(), _handlers(), _limits(), _bits():
        yield
    finally:
      _at_work.clear()
      _reopen()


def _end(error: BaseException | None) -> None:
  """Ends this process without Python's own cleaning; see `alone`."""
  status = 0
  with contextlib.suppress(BaseException):
    if isinstance(error, SystemExit):
      said = error.code
      status = said if isinstance(said, int) else int(said is not None)
      if said is not None and not isinstance(said, int):
        sys.stderr.write(f'{said}\n')
    elif error:
      status = 1
      traceback.print_exception(error)
    _flush()
  os._exit(status & 0xff)


def _flush() -> None:
  """Writes what is printed so far, which a forked process would write too."""
  for stream in sys.stdout, sys.stderr:
    with contextlib.suppress(Exception):
      stream.flush()


os.register_at_fork(before=_flush)


@contextlib.contextmanager
def _folder() -> Iterator[None]:
  own = _working()
  if _folders and _folders[1] == own:
    with contextlib.suppress(OSError):  # it is gone
      os.chdir(_folders[0])
  try:
    yield
  finally:
    theirs = _working()
    _folders[:] = [theirs, own] if theirs != own else []
    if theirs != own:
      with contextlib.suppress(OSError):
        os.chdir(own)


def _working() -> str:
  """Returns the folder of this process; '' if it is gone."""
  try:
    return os.getcwd()
  except OSError:
    return ''


@contextlib.contextmanager
def _handlers() -> Iterator[None]:
  before = {number: signal.getsignal(number) for number in _SIGNALS}
  waits = any(signal.getitimer(signal.ITIMER_REAL))
  try:
    yield
  finally:
    if not waits:  # An alarm would come in the middle of the run.
      signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
      if signal.getsignal(number) is not handler and handler is not None and (
          threading.current_thread() is threading.main_thread()):
        signal.signal(number, handler)


@contextlib.contextmanager
def _limits() -> Iterator[None]:
  before = [resource.getrlimit(limit) for limit in _LIMITS]
  try:
    yield
  finally:
    for limit, (soft, _) in zip(_LIMITS, before):
      now, hard = resource.getrlimit(limit)
      if now != soft:
        with contextlib.suppress(OSError, ValueError):  # the hard one is lower
          resource.setrlimit(limit, (soft, hard))


@contextlib.contextmanager
def _bits() -> Iterator[None]:
  before = _x64()
  try:
    yield
  finally:
    if _x64() and not before:
      _switch_off()


@contextlib.contextmanager
def narrow() -> Iterator[None]:
  """Switches JAX's 64-bit numbers off while a program of this package runs.

  Its programs are made for 32 bits. The option is one of the whole process:
  compilations are in several threads.
  """
  before = _x64()
  if before:
    _switch_off()
  try:
    yield
  finally:
    if before:
      sys.modules['jax'].config.update('jax_enable_x64', True)


def _x64() -> bool:
  """Returns whether JAX's numbers have 64 bits; False if it is not there."""
  jax: Any = sys.modules.get('jax')
  return jax is not None and jax.config.jax_enable_x64


def _switch_off() -> None:
  jax: Any = sys.modules['jax']
  jax.config.update('jax_enable_x64', False)
  from absl import logging  # not in the processes of `worker`
  logging.log_first_n(
      logging.WARNING, 'jax_enable_x64 is on, and is switched off while a run '
      'is at work: a function of your own that needs 64 bits takes them with '
      '`with jax.enable_x64(True):`.', 1)


def _reopen() -> None:
  """Opens standard streams that the user's code has closed, to nothing."""
  for number, name in enumerate(('stdin', 'stdout', 'stderr')):
    try:
      os.fstat(number)
    except OSError:
      # The next file that is opened would get its number, and what is printed.
      opened = os.open(os.devnull, os.O_RDWR)
      if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    stream = getattr(sys, name)
    if getattr(stream, 'closed', False):
      setattr(sys, name, open(number, 'r+' if not number else 'w',
                              closefd=False))
