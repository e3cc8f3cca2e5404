"""Worker processes that judge items side by side; see `worker.py`."""

import concurrent.futures
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from typing import Any

_START = 300.0  # seconds that importing a verifier may take
_GRACE = 10.0  # seconds after its time limit that a worker has to say so


class _Worker:
  """One process, restarted when it is gone."""

  def __init__(self, command: list[str]):
    self._command = command
    self._process: subprocess.Popen | None = None
    self._ready = False

  def start(self) -> None:
    """Starts the process, and does not wait for it.

    Raises:
      ChildProcessError: the system does not let it.
    """
    self._ready = False
    # It imports what this process would, and nothing from where it happens to
    # be run.
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    try:
      self._process = subprocess.Popen(
          self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
          start_new_session=True, env={**os.environ, 'PYTHONPATH': path})
    except OSError as error:
      raise ChildProcessError(
          f'`{" ".join(self._command)}` cannot be run ({error}).') from None

  def ask(self, line: bytes, seconds: float) -> dict[str, Any]:
    """The reply to an item.

    Raises:
      ChildProcessError: the process cannot be started.
      OSError: it is gone or silent; the next item gets a new one.
    """
    if self._process and self._ready and self._process.poll() is not None:
      self.stop()  # it died between two items: not this one's fault
    if self._process is None:
      self.start()
    if not self._ready:
      try:
        self._read(_START)
      except OSError as error:
        self.stop()
        raise ChildProcessError(
            f'`{" ".join(self._command)}` does not start; what it says itself '
            f'is above ({error}).') from None
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
      raise OSError('the process that verifies answers '
                    + ('is gone' if ready else 'does not answer'))
    return json.loads(line)

  def kill(self) -> None:
    """Kills the process and its child; for any thread."""
    if process := self._process:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

  def stop(self) -> None:
    """Ends the process and its child at once."""
    if self._process is None:
      return
    self.kill()
    self._process.wait()
    for pipe in (self._process.stdin, self._process.stdout):
      # What was not written yet never will be.
      with contextlib.suppress(OSError):
        pipe.close()
    self._process = None


class Pool:
  """Judges items in worker processes, each with a hard limit of time.

  Workers start when the first item comes, and end with the pool or with this
  process.
  """

  def __init__(
      self, target: str, *, workers: int, seconds: float,
      memory: int = 4_000_000_000):
    """Makes a pool; nothing is started yet.

    Args:
      target: 'module:function', of an item (anything JSON can hold) to a
        dictionary of short texts and numbers, `kind` among them.
      workers: processes.
      seconds: wall-clock time that an item may take.
      memory: bytes of address space that a worker may have.

    Raises:
      ValueError: there are no workers, or no time.
    """
    if workers < 1 or not seconds > 0:
      raise ValueError(
          f'A pool of {workers} workers with {seconds} s for an item can do '
          'nothing: use at least 1 and more than 0 s.')
    self._seconds = seconds
    command = [sys.executable, '-P', '-m', 'jaxrl_llm.rewards.worker', target,
               str(seconds), str(memory)]
    self._workers = [_Worker(command) for _ in range(workers)]
    self._free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in self._workers:
      self._free.put(worker)
    self._threads = concurrent.futures.ThreadPoolExecutor(
        workers, thread_name_prefix='verify')
    self._lock, self._started = threading.Lock(), False
    self._over: ChildProcessError | None = None

  def submit(self, item: Any) -> concurrent.futures.Future:
    """Begins to judge an item.

    Returns:
      A future of what the function returned, or of {'kind': 'timeout'} or
      {'kind': 'error'} with a 'detail'. It raises ChildProcessError if the
      workers cannot be started at all, and nothing else.

    Raises:
      ChildProcessError: the same, known at once; or the pool is closed.
    """
    with self._lock:
      if self._over:
        raise self._over
      if not self._started:
        self._started = True
        for worker in self._workers:
          worker.start()
    return self._threads.submit(self._judge, json.dumps(item).encode() + b'\n')

  def _judge(self, line: bytes) -> dict[str, Any]:
    worker = self._free.get()
    try:
      if self._over:
        raise self._over
      return worker.ask(line, self._seconds)
    except ChildProcessError as error:
      # Starting takes seconds: it is not tried again for each item.
      self._over = error
      raise
    except (OSError, ValueError) as error:
      return {'kind': 'error', 'detail': f'{type(error).__name__}: {error}'}
    finally:
      self._free.put(worker)

  def close(self) -> None:
    """Ends the workers; items that wait are not judged."""
    self._over = ChildProcessError('The pool of verifiers is closed.')
    self._threads.shutdown(wait=False, cancel_futures=True)
    for worker in self._workers:
      worker.kill()
    self._threads.shutdown()
    for worker in self._workers:
      worker.stop()
