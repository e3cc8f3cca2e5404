"""Start of a program, before its imports, which take seconds.

The package imports this file first. In the process of a program, Ctrl-C then
ends it with one sentence until `monitoring.exits` takes over, and a config that
cannot be loaded, or that names a file that is not there, ends it at once.
"""

import os
import pathlib
import signal
import sys
from typing import Any
import warnings

from jaxrl_llm.base import plain

_PROGRAMS = 'train', 'evaluate', 'sft'  # they take a config
_INTERRUPTED = 'Interrupted while the program started; nothing was written.'


def program() -> str | None:
  """Returns the program that Python is about to run, such as 'train'."""
  if sys.argv[:1] == ['-m']:  # so it is until Python has found the module
    name = sys.orig_argv[sys.orig_argv.index('-m') + 1]
    found = name.removeprefix('jaxrl_llm.')
  elif sys.argv and sys.orig_argv[1:] == sys.argv:  # a script
    name = pathlib.PurePath(sys.argv[0]).name
    found = name.removeprefix('jaxrl-')
  else:
    return None
  return found if found != name and found in (*_PROGRAMS, 'export') else None


def begin() -> None:
  """Begins a program, if this process is to run one."""
  name = program()
  if name is None:
    return
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
  if name in _PROGRAMS:
    from jaxrl_llm.config import command_line
    # A config file may import the program, which Python then warns of.
    warnings.filterwarnings(
        'ignore', "'jaxrl_llm.* found in sys.modules", RuntimeWarning)
    of_module = sys.argv[0] == '-m'
    at = sys.orig_argv.index('-m') + 2 if of_module else 2
    command_line.begin(sys.orig_argv[at:])


def done() -> None:
  """Restores what SIGINT does."""
  if signal.getsignal(signal.SIGINT) is _end:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: Any) -> None:
  # An exception might come in the middle of an import, which would report it
  # as a fault of its own.
  plain.say_now(_INTERRUPTED)
  os._exit(130)
