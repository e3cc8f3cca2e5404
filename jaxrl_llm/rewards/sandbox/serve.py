"""A service that runs programs in sandboxes, for machines that cannot.

  python -m jaxrl_llm.rewards.sandbox.serve --token_file=FILE

The machine needs bubblewrap. The file has a secret that clients send; without
one, it is made. A request waits until a worker is free; when too many wait, the
answer is 503, and clients ask again. Programs cannot use more than the limits
of the service, whatever a request says. Put it on a private network, or behind
a proxy with TLS.
"""

import argparse
from concurrent import futures
import contextlib
import dataclasses
import hmac
import http.server
import json
import os
import pathlib
import secrets
import sys
import threading
from typing import Any, Callable

from jaxrl_llm.rewards import sandbox
from jaxrl_llm.rewards.sandbox import ProgramLimits, SandboxError, wire

MOST = ProgramLimits(seconds=60, wall=600, memory=4 << 30, processes=256,
              disk=256 << 20, output=16 << 20)
_LARGEST = 64 << 20  # bytes of a request
_IDLE = 60.0  # seconds that a client may be silent


class Service(http.server.ThreadingHTTPServer):
  """Serves an executor."""

  daemon_threads = True
  request_queue_size = 128

  def __init__(
      self, address: tuple[str, int], executor: sandbox.Executor, token: str, *,
      workers: int, queue: int):
    """Opens the port.

    Args:
      address: host and port; port 0 takes a free one.
      executor: runs the programs.
      token: secret that clients send.
      workers: number of programs at a time.
      queue: number of requests that may wait.

    Raises:
      OSError: the port cannot be opened.
    """
    super().__init__(address, _Handler)
    self.executor, self.token = executor, token
    # These threads keep their checkers; one that serves a request ends with it.
    self.workers = futures.ThreadPoolExecutor(workers)
    self.room = threading.Semaphore(workers + queue)

  def server_close(self) -> None:
    """Closes the port, and waits for the programs that run."""
    super().server_close()
    self.workers.shutdown(cancel_futures=True)


class _Handler(http.server.BaseHTTPRequestHandler):
  """Answers a request."""

  timeout = _IDLE
  server: Service

  def do_POST(self) -> None:  # the name that http.server calls
    sent = self.headers.get('Authorization', '').encode('utf-8', 'replace')
    if not hmac.compare_digest(sent, f'Bearer {self.server.token}'.encode()):
      return self._reply(401, b'the token is wrong')
    try:
      size = int(self.headers.get('Content-Length', ''))
    except ValueError:
      return self._reply(411, b'a length is missing')
    if not 0 <= size <= _LARGEST:
      return self._reply(413, b'the request is too large')
    body = self.rfile.read(size)
    do = {'ready': lambda data: True, 'run': self._run,
          'check': self._check}.get(self.path.strip('/'))
    if do is None:
      return self._reply(404, b'ask for run or check')
    if not self.server.room.acquire(blocking=False):
      return self._reply(503, b'too many requests wait')
    try:
      self._answer(do, body)
    finally:
      self.server.room.release()

  def _answer(self, do: Callable[[Any], Any], body: bytes) -> None:
    try:
      said = self.server.workers.submit(do, json.loads(body)).result()
    except SandboxError as error:
      return self._reply(500, str(error).encode())
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
      return self._reply(400, str(error).encode('utf-8', 'replace'))
    except (futures.CancelledError, RuntimeError):
      return self._reply(503, b'the service ends')
    self._reply(200, json.dumps(said).encode())

  def _run(self, data: Any) -> Any:
    arguments = wire.run_arguments(data, MOST)
    return wire.packed_result(self.server.executor.run(**arguments))

  def _check(self, data: Any) -> Any:
    arguments = wire.check_arguments(data, MOST)
    return [dataclasses.astuple(outcome)
            for outcome in self.server.executor.check(**arguments)]

  def _reply(self, status: int, body: bytes) -> None:
    self.close_connection = True
    self.send_response(status)
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def log_message(self, *_: Any) -> None:
    """Logs nothing: a training run sends many requests a second."""


def read_token(path: pathlib.Path) -> str:
  """Reads the token of a file, which is made if there is none."""
  if not path.exists():
    path.touch(0o600, exist_ok=False)
    path.write_text(secrets.token_urlsafe(32) + '\n')
  token = path.read_text().strip()
  if len(token) < 16:
    raise ValueError(f'{path} has no token of 16 characters or more.')
  return token


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--host', default='127.0.0.1')
  parser.add_argument('--port', type=int, default=8037)
  parser.add_argument('--token_file', type=pathlib.Path, required=True)
  parser.add_argument(
      '--workers', type=int, default=os.cpu_count() or 1,
      help='programs at a time')
  parser.add_argument(
      '--queue', type=int, default=1024, help='requests that may wait')
  args = parser.parse_args()
  try:
    executor = sandbox.make('bubblewrap')
    service = Service(
        (args.host, args.port), executor, read_token(args.token_file),
        workers=args.workers, queue=args.queue)
  except (OSError, ValueError) as error:
    raise SystemExit(str(error)) from None
  sys.stdout.write(f'Serving on {args.host}:{service.server_address[1]}.\n')
  sys.stdout.flush()
  with contextlib.suppress(KeyboardInterrupt), service:
    service.serve_forever()


if __name__ == '__main__':
  main()
