"""Programs on another machine, which runs `serve`."""

import http.client
import json
import pathlib
import random
import time
from typing import Any, Mapping
import urllib.parse

from jaxrl_llm.rewards.sandbox import wire
from jaxrl_llm.rewards.sandbox.protocol import (
  DEFAULTS,
  Outcome,
  ProgramLimits,
  Result,
  SandboxError,
  Suite,
)

_TRIES = 6
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 10.0  # seconds between tries
_CONNECT = 10.0  # seconds
_QUEUE = 300.0  # seconds beyond the limit that a request may wait for its turn
_BUSY = 429, 502, 503, 504


class RemoteExecutor:
  """Asks a service to run programs; see `serve`.

  A request that fails on its way is sent again: to run a program twice changes
  nothing. The program, its tests and the token cross the network in the clear,
  unless the address is https: use a private network, or a proxy with TLS.
  """

  def __init__(self, *, address: str, token_file: str):
    """Asks the service whether it is ready.

    Raises:
      ValueError: the address or the token is not valid, or nothing answers.
    """
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ('http', 'https') or not parts.hostname:
      raise ValueError(
          f'task.address={address!r} is no address of a service: write '
          'http://HOST:PORT.')
    self._address, self._parts = address, parts
    try:
      self._token = pathlib.Path(token_file).read_text().strip()
    except OSError as error:
      raise ValueError(
          f'task.token={token_file} cannot be read ({error}): give the file '
          "with the service's token.") from None
    try:
      self._ask('ready', {}, _CONNECT)
    except SandboxError as error:
      raise ValueError(
          f'task.address={address} does not serve: {error}. Start `python -m '
          'jaxrl_llm.rewards.sandbox.serve` there.') from None

  def run(
      self, program: str, *, stdin: bytes = b'',
      files: Mapping[str, bytes] | None = None,
      limits: ProgramLimits = DEFAULTS) -> Result:
    """Runs a program; see `sandbox.Executor`."""
    said = self._ask(
        'run', wire.packed_run(program, stdin, files or {}, limits),
        limits.wall)
    return self._read(wire.result, said)

  def check(
      self, program: str, tests: Suite, *,
      limits: ProgramLimits = DEFAULTS) -> list[Outcome]:
    """Judges a program; see `sandbox.Executor`."""
    said = self._ask(
        'check', wire.packed_check(program, tests, limits), limits.wall)
    found = self._read(wire.outcomes, said)
    if len(found) != len(tests.tests):
      raise SandboxError(f'{self._address} answered for {len(found)} tests')
    return found

  def _read(self, reader: Any, said: Any) -> Any:
    try:
      return reader(said)
    except (KeyError, TypeError, ValueError) as error:
      raise SandboxError(
          f'{self._address} sent no result ({error})') from None

  def _ask(self, what: str, data: Mapping[str, Any], seconds: float) -> Any:
    """Posts a request, several times if it fails on its way."""
    body = json.dumps(data).encode()
    wait, reason = _FIRST_WAIT, ''
    for attempt in range(_TRIES):
      if attempt:
        time.sleep(wait * random.uniform(0.5, 1))
        wait = min(2 * wait, _LONGEST_WAIT)
      try:
        status, said = self._post(what, body, seconds + _QUEUE)
      except (OSError, http.client.HTTPException) as error:
        reason = f'{type(error).__name__}: {error}'
        continue
      if status == 200:
        try:
          return json.loads(said)
        except ValueError:
          reason = 'the answer is no JSON'
          continue
      reason = f'{status}: {said[:200].decode(errors="replace")}'
      if status not in _BUSY:
        break
    raise SandboxError(f'{self._address} failed ({reason})')

  def _post(self, what: str, body: bytes, seconds: float) -> tuple[int, bytes]:
    kind = (http.client.HTTPSConnection if self._parts.scheme == 'https' else
            http.client.HTTPConnection)
    connection = kind(
        self._parts.hostname, self._parts.port, timeout=_CONNECT)
    try:
      connection.connect()
      connection.sock.settimeout(seconds)
      connection.request(
          'POST', f'{self._parts.path.rstrip("/")}/{what}', body,
          {'Authorization': f'Bearer {self._token}',
           'Content-Type': 'application/json'})
      reply = connection.getresponse()
      return reply.status, reply.read()
    finally:
      connection.close()
