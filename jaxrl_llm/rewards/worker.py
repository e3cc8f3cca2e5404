"""A process that judges one item at a time and may be killed at any moment.

  python -m jaxrl_llm.rewards.worker MODULE:FUNCTION SECONDS BYTES

reads items from its standard input, a line of JSON each, and answers each with
a line: what FUNCTION made of it. It forks, and the child does the work: an item
that takes more than SECONDS gets the child killed by the kernel, whatever it is
busy with; one that needs more than BYTES of memory, or crashes the child, costs
itself alone. The parent answers in the child's place, and forks the next in
milliseconds, since all that is slow to import was imported before (by the
module, or by its `prepare`, if it has one). It also does when a child has
grown: what that keeps of old items must not cost later ones. It ends with its
input.
"""

import contextlib
import importlib
import json
import mmap
import os
import resource
import signal
import sys
from typing import Any, BinaryIO, Callable

# Replies are shorter than a pipe takes at once, so that none is ever cut off.
_LONGEST = 1000


def main() -> None:
  """The program."""
  target, seconds, memory = sys.argv[1:]
  requests, replies = os.fdopen(os.dup(0), 'rb'), os.fdopen(os.dup(1), 'wb')
  # Whatever the function prints is no reply.
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
  os.dup2(2, 1)
  path, _, name = target.partition(':')
  module = importlib.import_module(path)
  judge = getattr(module, name)
  getattr(module, 'prepare', lambda: None)()
  busy = mmap.mmap(-1, 1)  # written by the child: 1 while an item is judged
  _send(replies, _line({'kind': 'ready'}))
  while True:
    child = os.fork()
    if not child:
      # Where the system sets no such limit, the time limit has to do.
      with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (int(memory),) * 2)
      os._exit(_serve(
          judge, float(seconds), int(memory), requests, replies, busy))
    _, status = os.waitpid(child, 0)
    if status == 0:
      return
    if not busy[0]:  # no item waits for an answer
      continue
    busy[0] = 0
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
      reply = {'kind': 'timeout', 'detail': f'not done after {seconds} s'}
    else:
      reply = {
          'kind': 'error', 'detail': f'the verifier died (status {status})'}
    _send(replies, _line(reply))


def _serve(
    judge: Callable[[Any], dict[str, Any]], seconds: float, memory: int,
    requests: BinaryIO, replies: BinaryIO, busy: mmap.mmap) -> bool:
  """Judges items until there are no more (False), or it has grown (True)."""
  unit = 1 if sys.platform == 'darwin' else 1024
  for line in requests:
    busy[0] = 1
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
      reply = _line(judge(json.loads(line)))
    except BaseException as error:  # SystemExit among them
      reply = _line(
          {'kind': 'error', 'detail': f'{type(error).__name__}: {error}'})
    signal.setitimer(signal.ITIMER_REAL, 0)
    busy[0] = 0
    _send(replies, reply)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if peak > memory // 4:
      return True
  return False


def _line(reply: dict[str, Any]) -> bytes:
  short = {
      key: value[:_LONGEST] if isinstance(value, str) else value
      for key, value in reply.items()}
  return json.dumps(short).encode() + b'\n'


def _send(replies: BinaryIO, line: bytes) -> None:
  replies.write(line)
  replies.flush()


if __name__ == '__main__':
  with contextlib.suppress(BrokenPipeError):  # nobody waits for the answer
    main()
