"""A process that judges one item at a time and may be killed at any moment.

  python -m jaxrl_llm.rewards.worker MODULE:FUNCTION SECONDS BYTES

It reads items from standard input, one line of JSON each, and answers each with
one line: the result of FUNCTION. A forked child does the work. The kernel kills
the child if an item takes more than SECONDS. An item that needs more than BYTES
of memory, or that crashes the child, affects no other item.

When a child dies, the parent answers in its place and forks the next child.
This takes milliseconds, because the parent has already imported all that is
slow to import (in the module, or in its optional function `prepare`). The
parent also replaces a child whose memory has grown, so that data kept from old
items does not slow down later ones. The process ends when its input ends. When
the process that started it has died, it kills its child and ends.
"""

import contextlib
import importlib
import json
import mmap
import os
import resource
import select
import signal
import sys
import time
from typing import Any, BinaryIO, Callable

from jaxrl_llm import rewards
from jaxrl_llm.base import plain, process_state

# Characters of a text in a reply, unless the function's module has another
# LONGEST. A child that dies while it writes loses its reply.
_LONGEST = 1000
_CHECK = 1.0  # seconds between two looks at the process that started this one


def main() -> None:
  """Runs the worker until its input ends."""
  target, seconds, memory = sys.argv[1:]
  requests, replies = os.fdopen(os.dup(0), 'rb'), os.fdopen(os.dup(1), 'wb')
  # Output printed by the function must not mix with the replies.
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
  os.dup2(2, 1)
  path, _, name = target.partition(':')
  module = importlib.import_module(path)
  judge = getattr(module, name)
  getattr(module, 'prepare', lambda: None)()
  longest = getattr(module, 'LONGEST', _LONGEST)
  starter = os.getppid()
  busy = mmap.mmap(-1, 1)  # shared with the child: 1 while it judges an item
  _send(replies, _line({'kind': 'ready'}))
  while True:
    # The child holds the writing end, which closes when it dies.
    life, held = os.pipe()
    child = os.fork()
    if not child:
      os.close(life)
      # Some systems have no such limit; the time limit must suffice there.
      with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (int(memory),) * 2)
      os._exit(_serve(
          judge, float(seconds), int(memory), requests, replies, busy, longest))
    os.close(held)
    status = _status(child, life, starter)
    os.close(life)
    if status == 0:
      return
    if not busy[0]:  # no item is waiting for an answer
      continue
    busy[0] = 0
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
      reply = {'kind': 'timeout', 'detail': f'not done after {seconds} s'}
    else:
      reply = {
          'kind': 'error', 'detail': f'the verifier died (status {status})'}
    _send(replies, _line(reply))


def _status(child: int, life: int, starter: int) -> int:
  """Waits for the child; kills it and this process if the starter has died.

  A verifier may block in C and ignore signals, so the child cannot do it.

  Args:
    child: process id.
    life: file descriptor that is readable once the child has died.
    starter: process id of the process that started this one.

  Returns:
    The child's exit status.
  """
  poll = select.poll()
  poll.register(life, select.POLLIN)
  while True:
    closed = poll.poll(1000 * _CHECK)
    found, status = os.waitpid(child, os.WNOHANG)
    if found:
      return status
    if os.getppid() != starter:
      os.kill(child, signal.SIGKILL)
      os._exit(1)
    if closed:  # just before its death, or by the verifier
      time.sleep(0.001)


def _serve(
    judge: Callable[[Any], dict[str, Any]], seconds: float, memory: int,
    requests: BinaryIO, replies: BinaryIO, busy: mmap.mmap,
    longest: int) -> bool:
  """Judges items in the child.

  Returns:
    False at the end of the input; True if the memory of this process has grown
    too much.
  """
  unit = 1 if sys.platform == 'darwin' else 1024
  for line in requests:
    busy[0] = 1
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
      with process_state.alone():
        reply = _line(judge(json.loads(line)), longest)
    except BaseException as error:  # SystemExit among them
      reply = _line({
          'kind': 'error', 'detail': plain.error(error),
          # Its end has the error.
          'trace': rewards.last_lines(error)[-_LONGEST:]})
    signal.setitimer(signal.ITIMER_REAL, 0)
    busy[0] = 0
    _send(replies, reply)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if peak > memory // 4:
      return True
  return False


def _line(reply: dict[str, Any], longest: int = _LONGEST) -> bytes:
  short = {
      key: value[:longest] if isinstance(value, str) else value
      for key, value in reply.items()}
  return json.dumps(short).encode() + b'\n'


def _send(replies: BinaryIO, line: bytes) -> None:
  replies.write(line)
  replies.flush()


if __name__ == '__main__':
  with contextlib.suppress(BrokenPipeError):  # the pool is gone
    main()
