"""A pool of worker processes that judge items in parallel; see `worker.py`."""

import collections
import concurrent.futures
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from typing import Any

_START = 300.0  # time limit for importing a verifier, in seconds
_GRACE = 10.0  # seconds that a worker has to report that its time ran out


class _Worker:
  """A worker process, restarted after it dies."""

  def __init__(self, command: list[str]):
    self._command = command
    self._process: subprocess.Popen | None = None
    self._ready = False

  def start(self) -> None:
    """Starts the process without waiting for it.

    Raises:
      ChildProcessError: the system cannot run the command.
    """
    self._ready = False
    # The worker imports from the same folders as this process, whatever its
    # current directory is.
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    try:
      self._process = subprocess.Popen(
          self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
          start_new_session=True, env={**os.environ, 'PYTHONPATH': path})
    except OSError as error:
      raise ChildProcessError(
          f'`{" ".join(self._command)}` cannot be run ({error}).') from None

  def ask(self, line: bytes, seconds: float) -> dict[str, Any]:
    """Sends an item to the process and returns the reply.

    Raises:
      ChildProcessError: the process cannot be started.
      OSError: the process died or did not answer; the next item gets a new
        process.
    """
    if self._process and self._ready and self._process.poll() is not None:
      self.stop()  # it died before this item, which is not to blame
    if self._process is None:
      self.start()
    if not self._ready:
      try:
        self._read(_START)
      except OSError as error:
        self.stop()
        raise ChildProcessError(
            f'`{" ".join(self._command)}` does not start; see its own output '
            f'above ({error}).') from None
      self._ready = True
    try:
      self._process.stdin.write(line)
      self._process.stdin.flush()
      return self._read(seconds + _GRACE)
    except (OSError, ValueError):
      self.stop()
      raise

  def _read(self, seconds: float) -> dict[str, Any]:
    replies, poll = self._process.stdout, select.poll()
    poll.register(replies, select.POLLIN)
    ready = poll.poll(1000 * seconds)
    line = replies.readline() if ready else b''
    if not line:
      raise OSError('the worker process '
                    + ('has died' if ready else 'does not answer'))
    return json.loads(line)

  def kill(self) -> None:
    """Kills the process and its child. May be called from any thread."""
    if process := self._process:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

  def stop(self) -> None:
    """Kills the process and its child, and cleans up."""
    if self._process is None:
      return
    self.kill()
    self._process.wait()
    for pipe in (self._process.stdin, self._process.stdout):
      # Closing flushes data that the dead process can no longer read.
      with contextlib.suppress(OSError):
        pipe.close()
    self._process = None


class Pool:
  """Pool of worker processes that judge items with a hard time limit.

  The workers start at the first item. They end with the pool or with this
  process.
  """

  def __init__(
      self, target: str, *, workers: int, seconds: float,
      memory: int = 4_000_000_000, keyed: bool = False):
    """Makes a pool without starting its workers.

    Args:
      target: 'module:function'. The function maps an item (any JSON value) to a
        dictionary of short texts and numbers with the key `kind`.
      workers: number of processes.
      seconds: wall-clock time limit for one item.
      memory: limit of a worker's address space in bytes.
      keyed: whether items with the same key go to the same worker, which may
        have kept something for them; else to any that is free.

    Raises:
      ValueError: `workers` is below 1, or `seconds` is not above 0.
    """
    if workers < 1 or not seconds > 0:
      raise ValueError(
          f'A pool of {workers} workers with {seconds} s per item can do '
          'nothing: use at least 1 worker and more than 0 s.')
    self._seconds = seconds
    command = [sys.executable, '-P', '-m', 'jaxrl_llm.rewards.worker', target,
               str(seconds), str(memory)]
    self._workers = [_Worker(command) for _ in range(workers)]
    groups = [[w] for w in self._workers] if keyed else [self._workers]
    # A group has a thread for each of its workers, so that one is free for it.
    self._groups = [
        (concurrent.futures.ThreadPoolExecutor(
            len(group), thread_name_prefix='verify'), collections.deque(group))
        for group in groups]
    self._lock, self._started = threading.Lock(), False
    self._over: ChildProcessError | None = None

  def submit(self, item: Any, key: int = 0) -> concurrent.futures.Future:
    """Starts to judge an item.

    Args:
      item: for the function.
      key: of the item, if the pool is keyed.

    Returns:
      A future of the function's result, or of {'kind': 'timeout'} or
      {'kind': 'error'} with a 'detail' and, if the function raised an error,
      the last lines of its traceback as 'trace'. Its only exception is
      ChildProcessError, if the workers cannot be started at all.

    Raises:
      ChildProcessError: the workers are known to fail to start, or the pool is
        closed.
    """
    with self._lock:
      if self._over:
        raise self._over
      if not self._started:
        self._started = True
        for worker in self._workers:
          worker.start()
    threads, free = self._groups[key % len(self._groups)]
    return threads.submit(self._judge, json.dumps(item).encode() + b'\n', free)

  def _judge(
      self, line: bytes, free: collections.deque[_Worker]) -> dict[str, Any]:
    worker = free.popleft()
    try:
      if self._over:
        raise self._over
      return worker.ask(line, self._seconds)
    except ChildProcessError as error:
      # A start takes seconds, so it is not tried again for each item.
      self._over = error
      raise
    except (OSError, ValueError) as error:
      return {'kind': 'error', 'detail': f'{type(error).__name__}: {error}'}
    finally:
      free.append(worker)

  def close(self) -> None:
    """Ends the workers; items that are still waiting are not judged."""
    self._over = ChildProcessError('The pool of verifiers is closed.')
    for threads, _ in self._groups:
      threads.shutdown(wait=False, cancel_futures=True)
    for worker in self._workers:
      worker.kill()
    for threads, _ in self._groups:
      threads.shutdown()
    for worker in self._workers:
      worker.stop()


class Pooled:
  """An object with a pool, which it makes for its first item."""

  _pool: Pool | None = None

  def close(self) -> None:
    """Ends the worker processes, if any; the next item starts new ones."""
    if self._pool is not None:
      self._pool.close()
      self._pool = None
