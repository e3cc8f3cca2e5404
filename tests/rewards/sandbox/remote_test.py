"""Tests of the service: results, tokens, limits, retries and bad requests."""

import contextlib
import http.client
import json
import threading
import time

import pytest

from jaxrl_llm.rewards import sandbox
from jaxrl_llm.rewards.sandbox import ProgramLimits, remote, serve, Suite, wire

TOKEN = 'a-token-of-the-tests'


class Fake:
  """Executor that notes what it is asked."""

  def __init__(self):
    self.limits = []

  def run(self, program, *, stdin, files, limits):
    self.limits.append(limits)
    if program == 'broken':
      raise sandbox.SandboxError('no namespaces')
    out = stdin + b''.join(files.values()) + b'\xff'
    return sandbox.Result('ok', 0, out, b'', 0.5, 7)

  def check(self, program, tests, *, limits):
    return [sandbox.Outcome('passed', test) for test in tests.tests]


@contextlib.contextmanager
def served(executor, **options):
  options = {'workers': 1, 'queue': 4, **options}
  service = serve.Service(('127.0.0.1', 0), executor, TOKEN, **options)
  threading.Thread(target=service.serve_forever, daemon=True).start()
  try:
    yield service, f'http://127.0.0.1:{service.server_address[1]}'
  finally:
    service.shutdown()
    service.server_close()


@pytest.fixture
def token(tmp_path):
  path = tmp_path / 'token'
  path.write_text(TOKEN + '\n')
  return str(path)


def test_results_and_limits_cross_the_wire(token):
  executor = Fake()
  with served(executor) as (_, address):
    client = sandbox.make('remote', address=address, token=token)
    result = client.run(
        '1', stdin=b'a', files={'x': b'\x00b'},
        limits=ProgramLimits(seconds=10 ** 6, wall=2))
    assert result == sandbox.Result('ok', 0, b'a\x00b\xff', b'', 0.5, 7)
    assert executor.limits[0].seconds == serve.MOST.seconds
    assert executor.limits[0].wall == 2
    assert client.check('1', Suite(['t1', 't2'])) == [
        sandbox.Outcome('passed', 't1'), sandbox.Outcome('passed', 't2')]
    with pytest.raises(sandbox.SandboxError, match='no namespaces'):
      client.run('broken')


def test_wrong_token_is_refused(tmp_path):
  wrong = tmp_path / 'wrong'
  wrong.write_text('another token')
  with served(Fake()) as (_, address):
    with pytest.raises(ValueError, match='does not serve: .*401'):
      sandbox.make('remote', address=address, token=str(wrong))


def test_requests_are_sent_again(token, monkeypatch):
  monkeypatch.setattr(remote, '_FIRST_WAIT', 0.01)
  with served(Fake(), queue=0) as (service, address):
    client = sandbox.make('remote', address=address, token=token)
    service.room.acquire()  # no room: 503
    threading.Timer(0.05, service.room.release).start()
    assert client.check('1', Suite(['t'])) == [sandbox.Outcome('passed', 't')]
    service.room.acquire()
    monkeypatch.setattr(remote, '_TRIES', 2)
    with pytest.raises(sandbox.SandboxError, match='503'):
      client.check('1', Suite(['t']))


@pytest.mark.parametrize('body, status', [
    (b'no json', 400), (b'[]', 400), (b'{"program": 3}', 400),
    (json.dumps({'program': '1', 'stdin': '', 'files': {'../x': ''},
                 'limits': {}}).encode(), 400),
    (json.dumps({'program': '1', 'stdin': '', 'files': {},
                 'limits': {'wall': -1}}).encode(), 400),
    (b'[' * 100_000, 400)])
def test_bad_requests_are_refused(body, status):
  with served(Fake()) as (service, _):
    connection = http.client.HTTPConnection(*service.server_address)
    connection.request('POST', '/run', body, {
        'Authorization': f'Bearer {TOKEN}'})
    assert connection.getresponse().status == status
    connection.close()


def test_service_that_ends_says_so():
  """It waits for the program that runs, not for those that wait."""
  executor, go, statuses = Fake(), threading.Event(), []
  executor.run = lambda *_, **__: go.wait(60) and Fake().run(
      '1', stdin=b'', files={}, limits=ProgramLimits())
  body = json.dumps(wire.packed_run('1', b'', {}, ProgramLimits()))

  def ask(address):
    connection = http.client.HTTPConnection(*address)
    connection.request('POST', '/run', body, {
        'Authorization': f'Bearer {TOKEN}'})
    statuses.append(connection.getresponse().status)

  with served(executor) as (service, _):
    askers = [threading.Thread(target=ask, args=(service.server_address,))
              for _ in range(3)]
    for asker in askers:
      asker.start()
    while service.workers._work_queue.qsize() < 2:
      time.sleep(0.01)
    threading.Timer(1.5, go.set).start()  # `shutdown` looks twice a second
  for asker in askers:
    asker.join()
  assert sorted(statuses) == [200, 503, 503]


def test_bad_addresses_and_tokens_are_refused(token, monkeypatch):
  monkeypatch.setattr(remote, '_TRIES', 1)
  with pytest.raises(ValueError, match='no address of a service'):
    sandbox.make('remote', address='here', token=token)
  with pytest.raises(ValueError, match='cannot be read'):
    sandbox.make('remote', address='http://127.0.0.1:9', token='/no/file')
  with pytest.raises(ValueError, match='does not serve'):
    sandbox.make('remote', address='http://127.0.0.1:9', token=token)


def test_token_file_is_made_once(tmp_path):
  path = tmp_path / 'token'
  token = serve.read_token(path)
  assert len(token) >= 32 and serve.read_token(path) == token
  assert path.stat().st_mode & 0o077 == 0
  path.write_text('short')
  with pytest.raises(ValueError, match='no token'):
    serve.read_token(path)
