"""Frame of the programs: what they do before and around their jobs.

A program reads its arguments and checks its config, then imports its job, which
takes seconds.
"""

import contextlib
import functools
import glob
import os
import signal
import threading
from typing import Any, Callable, Iterator, Sequence

from jaxrl_llm.base import place, plain

_INTERRUPTED = 'Interrupted while the program started; nothing was written.'
_GOES_ON = (
    'Interrupted; the same command goes on from the last checkpoint, if there '
    'is one.')
_TPUS = '/dev/accel*', '/dev/vfio/[0-9]*'  # device files


@contextlib.contextmanager
def starting(tpus: Sequence[str] = _TPUS) -> Iterator[None]:
  """Starts the process of a program in its body, which has the slow imports.

  Ctrl-C in the body ends the process with one sentence. On a machine without a
  TPU, JAX finds no libtpu, which the extras `aot` and `test` install as a
  compiler: it would print errors and hold a lock of the whole machine.

  Args:
    tpus: patterns of the device files of TPUs.
  """
  chosen = 'JAX_PLATFORMS', 'JAX_FORCE_TPU_INIT', 'TPU_LIBRARY_PATH'
  if not any(map(os.environ.get, chosen)) and not any(map(glob.glob, tpus)):
    # JAX passes over a library that it cannot load, without a word, and goes on
    # to other devices. Its option `jax_platforms` would have to name these.
    os.environ['TPU_LIBRARY_PATH'] = __file__
  before = signal.getsignal(signal.SIGINT)
  if before is not signal.default_int_handler or (
      threading.current_thread() is not threading.main_thread()):
    yield
    return
  signal.signal(signal.SIGINT, _end)
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, before)


def _end(*_: Any) -> None:
  # An exception might come in the middle of an import, which would report it
  # as a fault of its own.
  plain.say_now(_INTERRUPTED)
  os._exit(130)


def check(config: Any, *, models: bool = True) -> None:
  """Raises ValueError for a config that does not fit; see `stages.validate`."""
  from jaxrl_llm.prepare import stages  # imports JAX
  stages.validate(config, models=models)


def parse(
    argv: Sequence[str], program: str, more: str = '',
    check: Callable[..., None] = check) -> tuple[place.Given, Any, str]:
  """Reads the arguments of a program with a config, as `config.parse` does.

  Args:
    argv: the arguments, without the program's own name.
    program: its module in this package, for `--help`.
    more: text for `--help` about its other arguments.
    check: like `check`.

  Returns:
    The place among other processes; the config, of which all is checked but its
    models; and its name.
  """
  from jaxrl_llm import config as config_lib
  with config_lib.refused():
    given, rest = place.split(argv)
  return given, *config_lib.parse(
      rest, program, f'{more}\n{place.HELP}',
      check=functools.partial(check, models=False))


@contextlib.contextmanager
def running(
    given: place.Given, config: Any, interrupted: str = _GOES_ON,
    **others: Any) -> Iterator[None]:
  """Runs a job as its body, in this process or as one of many.

  Models are checked first, since transformers reads their files.

  Args:
    given, config: from `parse`.
    interrupted: the sentence after an interrupt by the user.
    **others: arguments of the job that all processes must have alike.
  """
  with contextlib.ExitStack() as stack:
    with starting():
      from jaxrl_llm import config as config_lib
      from jaxrl_llm import sharding
      from jaxrl_llm.monitoring import exits
      from jaxrl_llm.sharding import distributed
      with config_lib.refused():
        check(config)
      sharding.keep_memory(  # before there are threads
          config.mesh.keep_memory, large=config_lib.is_large(config))
      stack.enter_context(distributed.joined(
          given, config, {**config_lib.flatten(config), **others}))
    stack.enter_context(exits.program(interrupted, given.stopped_code))
    yield
