"""Start and end of a process of a run of many.

`joined` finds the other processes, connects to them and compares configs. A
process that fails tells the others, so that none waits for it.
"""

import contextlib
import os
import secrets
import sys
import threading
import time
import traceback
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from absl import logging
import jax

from jaxrl_llm.sharding import mesh as mesh_lib
from jaxrl_llm.sharding import processes, watchdog

HELP = """One process of many also takes

  --process_count=N --process_id=I --coordinator=HOST:PORT   of process 0
  --process_count=auto   JAX finds the others: on a TPU pod, under SLURM
"""
_FLAGS = ('process_count', 'process_id', 'coordinator')
AUTO = 'auto'


class Given(NamedTuple):
  """Place of this process among others, as the command line gives it.

  Attributes:
    count: number of processes; AUTO for what JAX finds; None if not given.
    index: number of this process.
    coordinator: host:port of process 0.
  """
  count: int | str | None = None
  index: int | None = None
  coordinator: str | None = None


def parse(argv: Sequence[str]) -> tuple[Given, list[str]]:
  """Calls `split`; on a mistake ends the program with exit code 2."""
  try:
    return split(argv)
  except ValueError as error:
    sys.stderr.write(f'{error}\n')
    sys.exit(2)


def split(argv: Sequence[str]) -> tuple[Given, list[str]]:
  """Splits the flags of a process from the other arguments.

  Args:
    argv: --process_count=N --process_id=I --coordinator=HOST:PORT, or
      --process_count=auto, and others.

  Returns:
    The place of this process, and the other arguments.

  Raises:
    ValueError: a flag is missing or has a wrong value.
  """
  given, rest = {}, []
  for arg in argv:
    name, equals, value = arg.removeprefix('--').partition('=')
    if arg.startswith('--') and equals and name in _FLAGS:
      given[name] = value
    else:
      rest.append(arg)
  if not given or given == {'process_count': AUTO}:
    return Given(*given.values()), rest
  missing = [name for name in _FLAGS if name not in given]
  if missing:
    raise ValueError(
        f'--{missing[0]} is missing: give --process_count=N, --process_id=I '
        'and --coordinator=HOST:PORT, or only --process_count=auto.')
  for name in _FLAGS[:2]:
    if not given[name].isdecimal():
      raise ValueError(f'--{name}={given[name]} must be a whole number.')
  count, index = int(given['process_count']), int(given['process_id'])
  if not index < count:
    raise ValueError(
        f'--process_id={index} must be less than --process_count={count}: '
        'processes are numbered from 0.')
  host, _, port = given['coordinator'].rpartition(':')
  if not host or not port.isdecimal():
    raise ValueError(
        f'--coordinator={given["coordinator"]} must be HOST:PORT of process 0.')
  return Given(count, index, given['coordinator']), rest


def _found(env: Mapping[str, str]) -> Given:
  """Returns the place of this process by its environment."""
  several = (
      env.get('JAX_COORDINATOR_ADDRESS') and env.get('JAX_NUM_PROCESSES') != '1'
      or int(env.get('SLURM_NTASKS', '1') or 1) > 1 and 'SLURM_PROCID' in env
      or ',' in env.get('TPU_WORKER_HOSTNAMES', ''))
  return Given(AUTO if several else None)


def first() -> bool:
  """Returns whether this process writes the files of its run."""
  return not jax.distributed.is_initialized() or jax.process_index() == 0


@contextlib.contextmanager
def joined(
    given: Given, config: Any, described: Mapping[str, Any]) -> Iterator[None]:
  """Makes this process one of a run of many, if it is one.

  Args:
    given: from `split`.
    config: of the run; its section `processes` has the limits of time.
    described: every field of the config, by name.

  Yields:
    When all processes are there, with equal configs. If the body fails, this
    process ends with exit code 1 after it told the others; the body must have
    turned errors into SystemExit where a sentence is enough.
  """
  if given.count is None:
    given = _found(os.environ)
  if given.count in (None, 1):
    yield
    return
  limits = config.processes
  try:
    watch = _meet(given, config, limits, described)
  except (ValueError, ConnectionError, RuntimeError) as error:
    watchdog.end_now(_first(error))
  if jax.process_index():
    logging.set_verbosity(logging.ERROR)
  try:
    try:
      yield
    except SystemExit as end:
      if end.code not in (None, 0):
        raise
    jax.distributed.shutdown()  # waits for the others
  except BaseException as error:  # pylint: disable=broad-exception-caught
    # A collective fails before the watchdog knows of the peer that is gone;
    # then it ends this process meanwhile, with the better sentence.
    time.sleep(_wait_for_news(error, limits.patience))
    watch.fail(f'Process {jax.process_index()} ended: {_first(error)}')
    if isinstance(error, SystemExit):
      sys.stderr.write(f'{error.code}\n')
    else:
      traceback.print_exc()
    watchdog.leave(1)
  watch.close()
  watchdog.leave(0)


def _wait_for_news(error: BaseException, patience: float) -> float:
  """Returns seconds to wait for news of a peer after an error."""
  text = str(error).lower()
  of_network = any(word in text for word in (
      'gloo', 'connection', 'unavailable', 'deadline', 'coordination', 'nccl'))
  return patience + 3.0 if of_network else 0.0


def _first(error: BaseException) -> str:
  text = str(error.code if isinstance(error, SystemExit) else error)
  return text.strip().partition('\n')[0][:500] or type(error).__name__


def _host(coordinator: str) -> str:
  """Returns the host of HOST:PORT."""
  return coordinator.rpartition(':')[0].strip('[]')


def _meet(given: Given, config, limits, described) -> watchdog.Watchdog:
  """Connects to the other processes, and compares configs."""
  place = {} if given.count == AUTO else dict(
      coordinator_address=given.coordinator, num_processes=given.count,
      process_id=given.index)
  who = f'Process {given.index}' if place else 'This process'
  late = threading.Timer(
      limits.initialization_timeout, watchdog.end_now, [
          f'{who} has waited {limits.initialization_timeout} s for the others'
          + (f' at {given.coordinator}' if place else '') + ': start all '
          f'{given.count if place else ""} processes'.replace('  ', ' ')
          + ', each with its own --process_id and the same --coordinator, or '
          'raise processes.initialization_timeout.'])
  late.daemon = True
  late.start()
  # It would take over SIGTERM.
  jax.config.update('jax_enable_preemption_service', False)
  if place and _host(given.coordinator) in ('localhost', '127.0.0.1', '::1'):
    # All processes share these cores; XLA takes its number of threads from it.
    os.environ.setdefault(
        'NPROC', str(max(1, (os.cpu_count() or 1) // given.count)))
  if config.mesh.cpu_devices is not None:
    mesh_lib.split_cpu(config.mesh.cpu_devices)
  jax.distributed.initialize(
      **place,
      initialization_timeout=limits.initialization_timeout + 30,
      heartbeat_timeout_seconds=limits.heartbeat_timeout,
      shutdown_timeout_seconds=limits.shutdown_timeout)
  channel = processes.Channel()
  server, hub = None, None
  if channel.first:
    server, addresses, port = watchdog.listen()
    if given.coordinator:
      addresses.insert(0, _host(given.coordinator))
    hub = addresses, port, secrets.token_hex(8)
  addresses, port, secret = channel.gather(hub)[0]
  watch = watchdog.Watchdog(
      channel.index, channel.count, patience=limits.patience, secret=secret,
      server=server, addresses=addresses, port=port)
  late.cancel()
  try:
    channel.agree(described, 'between the processes')
  except ValueError as error:
    watch.fail(str(error))
    raise
  return watch
