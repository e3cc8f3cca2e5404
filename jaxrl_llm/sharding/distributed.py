"""Start and end of a process of a run of many.

`joined` finds the other processes, connects to them and compares configs. A
process that fails tells the others, so that none waits for it.
"""

import contextlib
import json
import math
import os
import secrets
import signal
import sys
import threading
import time
import traceback
from typing import Any, Iterator, Mapping

from absl import logging
import jax

from jaxrl_llm.base.place import AUTO, Given
from jaxrl_llm.sharding import cpu, watchdog
from jaxrl_llm.sharding.channel import Channel

# Times `processes.patience` that the others may take to come at the start:
# hosts of a cluster import from one file system, some much later than others.
_ARRIVAL = 4
_SHUTDOWN = 300  # seconds; the others may still write a large checkpoint


def _found(env: Mapping[str, str]) -> str | None:
  """Returns the number of processes by the environment: AUTO, or None for one.
  """
  # A shell in an allocation of SLURM is no step of it.
  several = (
      env.get('JAX_COORDINATOR_ADDRESS') and env.get('JAX_NUM_PROCESSES') != '1'
      or int(env.get('SLURM_NTASKS', '1') or 1) > 1
      and {'SLURM_PROCID', 'SLURM_STEP_NODELIST'} <= {*env}
      or ',' in env.get('TPU_WORKER_HOSTNAMES', ''))
  return AUTO if several else None


def first() -> bool:
  """Returns whether this process writes the files of its run."""
  return not jax.distributed.is_initialized() or jax.process_index() == 0


@contextlib.contextmanager
def joined(
    given: Given, config: Any, described: Mapping[str, Any]) -> Iterator[None]:
  """Makes this process one of a run of many, if it is one.

  Args:
    given: from `place.split`.
    config: of the run; `processes.patience` is the limit of time.
    described: every field of the config, by name.

  Yields:
    When all processes are there, with equal configs. If the body fails, this
    process ends with exit code 1 after it told the others; the body must have
    turned errors into SystemExit where a sentence is enough.
  """
  if given.count is None:
    given = given._replace(count=_found(os.environ))
  if given.count in (None, 1):
    yield
    return
  patience = config.processes.patience
  try:
    watch = _meet(given, config, described)
  except (ValueError, ConnectionError, RuntimeError) as error:
    watchdog.end_now(_first(error))
  if not first():
    logging.set_verbosity(logging.ERROR)
  code = 0
  try:
    try:
      yield
    except SystemExit as end:
      code = end.code or 0
      if code not in (0, given.stopped_code):
        raise
    jax.distributed.shutdown()  # waits for the others
  except BaseException as error:  # pylint: disable=broad-exception-caught
    # A collective fails before the watchdog knows of the peer that is gone;
    # then it ends this process meanwhile, with the better sentence.
    time.sleep(_wait_for_news(error, patience))
    watch.fail(f'Process {jax.process_index()} ended: {_first(error)}')
    if isinstance(error, SystemExit):
      sys.stderr.write(f'{error.code}\n')
    else:
      traceback.print_exc()
    watchdog.leave(1)
  watch.close()
  watchdog.leave(code)


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


def _meet(
    given: Given, config: Any, described: Mapping[str, Any],
) -> watchdog.Watchdog:
  """Connects to the other processes, and compares configs.

  Raises:
    ValueError: there are no others, or their configs differ.
    ConnectionError: the others cannot be reached.
  """
  place = {} if given.count == AUTO else dict(
      coordinator_address=given.coordinator, num_processes=given.count,
      process_id=given.index, cluster_detection_method='deactivate')
  patience = config.processes.patience
  arrival = math.ceil(_ARRIVAL * patience)
  late = _limited(given, arrival)
  # It would take over SIGTERM.
  jax.config.update('jax_enable_preemption_service', False)
  if place and _host(given.coordinator) in ('localhost', '127.0.0.1', '::1'):
    # All processes share these cores; XLA takes its number of threads from it.
    os.environ.setdefault(
        'NPROC', str(max(1, (os.cpu_count() or 1) // given.count)))
  if config.mesh.cpu_devices is not None:
    cpu.split_cpu(config.mesh.cpu_devices)
  if given.index == 0:
    _check_free(given.coordinator)
  with _interruptible():
    try:
      jax.distributed.initialize(
          **place, initialization_timeout=arrival + 30,
          # They may abort after half of this time; the watchdog comes first.
          heartbeat_timeout_seconds=math.ceil(2 * patience) + 40,
          shutdown_timeout_seconds=_SHUTDOWN)
    except ValueError as error:
      raise ValueError(
          'JAX found no other processes (no TPU pod, no step of SLURM): give '
          '--process_count=N, --process_id=I and --coordinator=HOST:PORT. '
          f'({error})') from None
    _take_all_gpus(os.environ)
    channel = Channel()  # Waits for the devices of all processes.
    watch = _watch(given, channel, patience)
  try:
    channel.agree(
        json.loads(json.dumps(described, default=repr)),
        'between the processes')
  except ValueError as error:
    watch.fail(str(error))
    raise
  late.cancel()
  return watch


def _limited(given: Given, seconds: float) -> threading.Timer:
  """Starts a timer that ends the process if the others do not come."""
  explicit = given.count != AUTO
  late = threading.Timer(seconds, watchdog.end_now, [
      (f'Process {given.index}' if explicit else 'This process')
      + f' has waited {seconds} s for the others'
      + (f' at {given.coordinator}: start all {given.count} processes'
         if explicit else ': start all processes')
      + ', each with its own --process_id and the same --coordinator, or raise '
      'processes.patience.'])
  late.daemon = True
  late.start()
  return late


def _check_free(coordinator: str) -> None:
  """Raises ValueError if another program listens on the coordinator's port."""
  port = int(coordinator.rpartition(':')[2])
  try:
    watchdog.listen(port)[0].close()
  except OSError as error:
    raise ValueError(
        f'Process 0 cannot listen on port {port} of --coordinator='
        f'{coordinator} ({error.strerror}): choose another port.') from None


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
  """Lets Ctrl-C end the process during a call that does not return to Python.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  before = signal.signal(signal.SIGINT, signal.SIG_DFL)
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, before)


def _take_all_gpus(env: Mapping[str, str]) -> None:
  """Undoes JAX's choice of one GPU where SLURM runs one task per node."""
  nodes = env.get('SLURM_STEP_NUM_NODES')
  if nodes and nodes == env.get('SLURM_NTASKS'):
    for name in 'jax_cuda_visible_devices', 'jax_rocm_visible_devices':
      jax.config.update(name, 'all')


def _watch(
    given: Given, channel: Channel, patience: float) -> watchdog.Watchdog:
  """Starts the watchdog; process 0 says where its hub is."""
  server, hub = None, None
  if channel.first:
    server, addresses, port = watchdog.listen()
    if given.coordinator:
      addresses.insert(0, _host(given.coordinator))
    hub = addresses, port, secrets.token_hex(8)
  addresses, port, secret = channel.gather(hub)[0]
  return watchdog.Watchdog(
      channel.index, channel.count, patience=patience, secret=secret,
      server=server, addresses=addresses, port=port,
      end=lambda sentence, lost: watchdog.end_now(
          sentence, given.stopped_code * lost or 1))
