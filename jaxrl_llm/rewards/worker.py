"""A process that judges one item at a time and may be killed at any moment.

  python -m jaxrl_llm.rewards.worker MODULE:FUNCTION SECONDS BYTES

reads items from its standard input, a line of JSON each, and answers each with
a line: what FUNCTION made of it. It forks, and the child does the work: an item
that takes more than SECONDS gets the child killed by the kernel, whatever it is
busy with; one that needs more than BYTES of memory, or crashes the child, costs
itself alone. The parent answers in the child's place, and forks the next in
milliseconds, since all that is slow to import was imported before (by the
module, or by its `prepare`, if it has one). It ends with its input.
"""

import contextlib
import importlib
import json
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
  _send(replies, {'kind': 'ready'})
  while True:
    child = os.fork()
    if not child:
      # Where the system sets no such limit, the time limit has to do.
      with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (int(memory),) * 2)
      _serve(judge, float(seconds), requests, replies)
      os._exit(0)
    _, status = os.waitpid(child, 0)
    if status == 0:
      return
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
      _send(replies, {
          'kind': 'timeout', 'detail': f'not done after {seconds} s'})
    else:
      _send(replies, {
          'kind': 'error', 'detail': f'the verifier died (status {status})'})


def _serve(
    judge: Callable[[Any], dict[str, Any]], seconds: float,
    requests: BinaryIO, replies: BinaryIO) -> None:
  """Judges items until there are no more."""
  for line in requests:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
      reply = judge(json.loads(line))
    except Exception as error:
      reply = {'kind': 'error', 'detail': f'{type(error).__name__}: {error}'}
    signal.setitimer(signal.ITIMER_REAL, 0)
    _send(replies, reply)


def _send(replies: BinaryIO, reply: dict[str, Any]) -> None:
  """Writes one line."""
  short = {
      key: value[:_LONGEST] if isinstance(value, str) else value
      for key, value in reply.items()}
  replies.write(json.dumps(short).encode() + b'\n')
  replies.flush()


if __name__ == '__main__':
  main()
