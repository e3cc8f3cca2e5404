"""Processes with limits: output, time, and the tree that they have started."""

import contextlib
import os
import pathlib
import selectors
import signal
import subprocess
import time
from typing import IO, Iterable, Sequence

from jaxrl_llm.rewards.sandbox.protocol import ProgramLimits, Result

GUEST = pathlib.Path(__file__).parent / 'guest'
# Code of the first line that Python runs in a sandbox.
START = 'import sys; sys.path.insert(0, sys.argv[1]); import start; ' \
        'start.main(*sys.argv[2:])'
_FIRST_LOOK, _LOOK = 0.03, 0.05  # seconds until the tree is looked at
_LINGER = 0.2  # seconds
_ROUNDS = 8  # of killing the groups of a tree
_SIGNALS = 64  # of Linux
_PAGE = os.sysconf('SC_PAGE_SIZE')


class Process:
  """A process with pipes for its input and output."""

  def __init__(
      self, command: Sequence[str], *, stdin: bytes, limits: ProgramLimits,
      descriptors: Iterable[int] = (), folder: str | None = None,
      status: IO[bytes] | None = None):
    """Starts it.

    Args:
      command: program and arguments.
      stdin: its standard input.
      limits: see `watch`.
      descriptors: of this process that it inherits.
      folder: where it runs.
      status: file for bwrap's own report, if the command is bwrap.

    Raises:
      OSError: the system cannot start it.
    """
    self.limits, self._stdin = limits, memoryview(stdin)
    self.status = status
    self.output, self.open = {1: bytearray(), 2: bytearray()}, {1, 2}
    self.began = time.monotonic()
    # Hashes of texts are the same in each run, so that verdicts are too.
    self.popen = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, cwd=folder, start_new_session=True,
        env={'PYTHONHASHSEED': '0'}, pass_fds=tuple(descriptors), bufsize=0)
    self.end, self.peak, self._look = '', 0, self.began + _FIRST_LOOK
    self.pipes = [self.popen.stdin, self.popen.stdout, self.popen.stderr]
    for pipe in self.pipes:
      os.set_blocking(pipe.fileno(), False)

  def register(self, selector: selectors.BaseSelector) -> None:
    """Registers the pipes."""
    for number in (1, 2):
      selector.register(
          self.pipes[number], selectors.EVENT_READ, (self, number))
    if self._stdin:
      selector.register(self.pipes[0], selectors.EVENT_WRITE, (self, 0))
    else:
      self.pipes[0].close()

  def serve(self, selector: selectors.BaseSelector, number: int) -> None:
    """Moves data of a pipe that is ready: 0, 1 or 2."""
    pipe = self.pipes[number]
    if number == 0:
      try:
        self._stdin = self._stdin[os.write(
            pipe.fileno(), self._stdin[:1 << 16]):]
      except BlockingIOError:
        return
      except OSError:
        self._stdin = memoryview(b'')
      if not self._stdin:
        selector.unregister(pipe)
        pipe.close()
      return
    try:
      data = os.read(pipe.fileno(), 1 << 16)
    except BlockingIOError:
      return
    if not data:
      selector.unregister(pipe)
      self.open.discard(number)
    room = self.limits.output - len(self.output[number])
    self.output[number] += data[:room]
    if len(data) > room:
      self.stop('output')

  def look(self, now: float) -> float:
    """Stops the process if it uses too much.

    Returns:
      When to look again.
    """
    if now - self.began > self.limits.wall:
      self.stop('timeout')
    if now >= self._look:
      members = tree(self.popen.pid, self.limits.processes)
      count, used = sum(map(_threads, members)), sum(map(_resident, members))
      if used > self.limits.memory:  # forks share most of it
        used = sum(map(_proportional, members))
      self.peak = max(self.peak, used)
      if used > self.limits.memory:
        self.stop('memory')
      elif count > self.limits.processes:
        self.stop('processes')
      self._look = time.monotonic() + _LOOK
    return min(self._look, self.began + self.limits.wall + 0.001)

  def stop(self, why: str) -> None:
    """Kills the process and its tree, if it still runs."""
    if self.popen.returncode is None:
      self.end = self.end or why
      kill_tree(self.popen.pid)

  def running(self) -> bool:
    """Returns whether the process runs."""
    return self.popen.poll() is None

  def finish(self) -> None:
    """Ends the work of the process."""
    self.close()

  def close(self) -> None:
    """Kills the process if it still runs, and closes its pipes."""
    if self.popen.poll() is None:
      self.stop('killed')
    for pipe in self.pipes:
      with contextlib.suppress(OSError):
        pipe.close()
    self.popen.wait()

  def result(self) -> Result:
    """Returns the result of the process, which has ended."""
    code = self.popen.returncode or 0
    # bwrap reports the signal that ended its program as a shell does.
    if self.status and 128 < code <= 128 + _SIGNALS:
      code = 128 - code
    status = self.end or (
        'ok' if code == 0 else 'exit' if code > 0 else
        'timeout' if -code in (signal.SIGXCPU, signal.SIGPROF) else 'killed')
    return Result(
        status, code if status in ('ok', 'exit') else None,
        bytes(self.output[1]), bytes(self.output[2]),
        time.monotonic() - self.began, self.peak)


class JobProcess(Process):
  """A process that does one job after another.

  Each job has its own limits, and its own pipe for output, which ends with the
  job.
  """

  def begin(self, pipe: IO[bytes], limits: ProgramLimits) -> None:
    """Takes the reading end of a job's pipe, and its limits."""
    self.pipes[1].close()
    self.pipes[1], self.limits = pipe, limits
    os.set_blocking(pipe.fileno(), False)
    self.output, self.open = {1: bytearray(), 2: bytearray()}, {1, 2}
    self.began, self.peak = time.monotonic(), 0
    self._look = self.began + _FIRST_LOOK

  def running(self) -> bool:
    """Returns whether the job runs."""
    return 1 in self.open and super().running()

  def finish(self) -> None:
    """Ends the job, and the process with it if the job has not ended."""
    if self.end or self.running():
      self.close()


def watch(processes: Sequence[Process]) -> None:
  """Waits for the first process, within the limits of all; then finishes all.

  Output is read until the process has ended, and no longer: a child that
  outlives it may hold the pipe.
  """
  with selectors.DefaultSelector() as selector:
    ends = None
    try:
      for process in processes:
        process.register(selector)
      first = processes[0]
      ends = _end_descriptor(first.popen.pid)
      if ends is not None:
        selector.register(ends, selectors.EVENT_READ, None)
      while first.running():
        until = min(p.look(time.monotonic()) for p in processes
                    if p is first or p.running())
        wait = max(0.0, until - time.monotonic())
        for key, _ in selector.select(wait if ends is not None else
                                      min(wait, 0.005)):
          if key.data:
            key.data[0].serve(selector, key.data[1])
      for key, _ in selector.select(0):
        if key.data and key.data[1]:
          _drain(selector, *key.data)
      # The others end when their pipes do: their own reasons are known then.
      last = time.monotonic() + _LINGER
      while any(p.running() for p in processes) and time.monotonic() < last:
        time.sleep(0.001)
    finally:
      if ends is not None:
        os.close(ends)
      for process in processes:
        process.finish()


def _drain(selector: selectors.BaseSelector, process: Process,
           number: int) -> None:
  """Reads the rest of a pipe of a process that has ended."""
  before = -1
  while before < len(process.output[number]) < process.limits.output:
    before = len(process.output[number])
    process.serve(selector, number)


def _end_descriptor(pid: int) -> int | None:
  """Returns a descriptor that is readable once a process has ended, if any."""
  try:
    return os.pidfd_open(pid)
  except (AttributeError, OSError):  # macOS; Linux before 5.3
    return None


def tree(pid: int, most: int = 4096) -> list[int]:
  """Returns a process and those that it has started, where Linux tells.

  Args:
    pid: of the process.
    most: number after which to stop looking.
  """
  found = [pid]
  for parent in found:
    with contextlib.suppress(OSError):  # it may end meanwhile
      for thread in os.listdir(f'/proc/{parent}/task'):
        with open(f'/proc/{parent}/task/{thread}/children') as file:
          found += map(int, file.read().split())
    if len(found) > most:
      break
  return found


def kill_tree(pid: int) -> None:
  """Kills a process and all that it has started, a group at a time.

  Single processes would fork faster than they can be killed. The first process
  goes last: without it, the processes that it has started could not be found.
  """
  mine = os.getpgrp()
  for _ in range(_ROUNDS):
    members = tree(pid, most=256)
    groups = set()
    for member in members[1:]:
      with contextlib.suppress(OSError):
        groups.add(os.getpgid(member))
    for group in groups - {mine, pid}:
      with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    if not groups - {mine, pid}:
      break
  with contextlib.suppress(OSError):
    os.killpg(pid, signal.SIGKILL)


def _threads(pid: int) -> int:
  try:
    return len(os.listdir(f'/proc/{pid}/task'))
  except OSError:
    return 0


def _resident(pid: int) -> int:
  """Returns the bytes of a process that are in memory and its own."""
  try:
    with open(f'/proc/{pid}/statm') as file:
      _, resident, shared, *_ = file.read().split()
  except (OSError, ValueError):
    return 0
  return (int(resident) - int(shared)) * _PAGE


def _proportional(pid: int) -> int:
  """Returns the bytes of a process in memory; shared pages count in parts."""
  try:
    with open(f'/proc/{pid}/smaps_rollup') as file:
      return next(1024 * int(line.split()[1]) for line in file
                  if line.startswith('Pss:'))
  except (OSError, StopIteration, ValueError):
    return _resident(pid)
