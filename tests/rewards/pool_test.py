"""Tests of worker processes: an item affects only its own verdict."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from jaxrl_llm import rewards
from jaxrl_llm.rewards import pool as pool_lib

pytestmark = pytest.mark.long  # They start processes.

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = 'tests.rewards.targets:act'
LIMIT = 0.7


def make(workers=1, seconds=LIMIT, **kwargs):
  return pool_lib.Pool(TARGET, workers=workers, seconds=seconds, **kwargs)


@pytest.fixture(scope='module')
def pool():
  pool = make(workers=2)
  yield pool
  pool.close()


@pytest.fixture(scope='module')
def single():
  pool = make()
  yield pool
  pool.close()


def ask(pool, *items):
  """Submits all items at once and returns the replies."""
  return [f.result() for f in [pool.submit(item) for item in items]]


def alive(pid):
  """Returns whether a process runs; a zombie does not."""
  try:
    return '\tZ' not in pathlib.Path(f'/proc/{pid}/status').read_text()
  except FileNotFoundError:
    return False


def test_replies_are_those_of_their_items(pool):
  items = [('say', f'{i}') for i in range(200)]
  assert [r['kind'] for r in ask(pool, *items)] == [t for _, t in items]


def test_workers_work_side_by_side(pool, tmp_path):
  path = str(tmp_path / 'file')
  first, second = ask(pool, ('wait', path), ('touch', path))
  assert (first['kind'], second['kind']) == ('found', 'touched')


def test_items_with_one_key_have_one_worker():
  keyed = make(workers=3, keyed=True)
  try:
    futures = [(key, keyed.submit(('pids', 0), key))
               for key in (0, 7, 2, 0, 7, 2, 4, 1)]
    workers = {}
    for key, future in futures:
      workers.setdefault(key % 3, set()).add(future.result()['parent'])
  finally:
    keyed.close()
  assert [len(found) for found in workers.values()] == [1, 1, 1]
  assert len(set.union(*workers.values())) == 3


@pytest.mark.parametrize('bad, kind, detail', [
    (('spin', 0), 'timeout', 'not done after 0.7 s'),
    (('wait', '/nonexistent'), 'timeout', 'not done after 0.7 s'),
    (('die', 0), 'error', 'the verifier died (status 11)'),
    (('die whole', 0), 'error', 'OSError: the worker process has died'),
    (('exit', 0), 'error', 'SystemExit: 0'),
    (('exit', 3), 'error', 'SystemExit: 3'),
    (('raise', 'x'), 'error', 'ValueError: invalid literal'),
    (('recurse', 0), 'error', 'RecursionError: '),
    (('object', 0), 'error', 'TypeError: '),
    (('nothing', 0), 'error', 'AttributeError: '),
    (('unknown', 0), 'error', "KeyError: 'unknown'"),
])
def test_a_bad_item_spoils_itself_alone(single, bad, kind, detail):
  """One worker, so that the item behind it gets the same one."""
  ask(single, ('say', 'warm'))
  start = time.monotonic()
  before, reply, *after = ask(
      single, ('say', 'a'), bad, ('say', 'b'), ('say', 'c'))
  assert reply['kind'] == kind and reply['detail'].startswith(detail)
  assert [r['kind'] for r in (before, *after)] == ['a', 'b', 'c']
  assert time.monotonic() - start < 10  # far from what waiting on it would be


@pytest.mark.parametrize('how', ['return', 'exit'])
def test_a_process_that_an_item_forks_answers_nothing(single, how):
  items = [('fork', how), ('say', 'a'), ('say', 'b')] * 2
  assert [reply['kind'] for reply in ask(single, *items)] == [
      how, 'a', 'b'] * 2


def test_an_error_brings_the_end_of_its_traceback(single):
  raised, long, died, said = ask(
      single, ('raise', 'x' * 2000),
      ('fail', '\n'.join(['x' * 200] * 20 + ['the end'])), ('die', 0),
      ('say', 'a'))
  lines = raised['trace'].split('\n')
  assert lines[-1].startswith('ValueError: invalid literal')
  assert any('targets.py' in line and 'in act' in line for line in lines)
  assert len(long['trace']) == 1000 and long['trace'].endswith('\nthe end')
  assert 'trace' not in died and 'trace' not in said


def test_a_timeout_is_on_time(single):
  ask(single, ('say', 'warm'))
  start = time.monotonic()
  assert ask(single, ('spin', 0))[0]['kind'] == 'timeout'
  assert LIMIT - 0.05 < time.monotonic() - start < LIMIT + 1


def test_any_text_comes_through(pool):
  texts = [
      '', '\0', '\ud800', '🙂', 'a\nb\r\n', '"}\n{"kind": "x"}', '\x7f\u2028']
  assert [r['kind'] for r in ask(pool, *(('say', t) for t in texts))] == texts


def test_long_items_and_replies(pool):
  long, = ask(pool, ('say', '🙂' * 10**6))
  assert long['kind'] == '🙂' * 1000


def test_what_is_printed_or_read_is_no_reply(pool):
  printed, read = ask(pool, ('print', '{"kind": "correct"}'), ('read', 0))
  assert printed['kind'] == 'printed' and read['kind'] == repr('')


@pytest.mark.parametrize('kill, which', [
    (os.kill, 'own'), (os.kill, 'parent'), (os.killpg, 'parent')])
def test_a_worker_that_dies_between_items_costs_nothing(single, kill, which):
  """Nor does a reply that nobody asked for take another's place."""
  pids, = ask(single, ('pids', 0))
  assert pids['parent'] != os.getsid(0)
  kill(pids[which], signal.SIGKILL)
  time.sleep(0.2)
  items = [('say', f'{i}') for i in range(5)]
  assert [r['kind'] for r in ask(single, *items)] == [t for _, t in items]


def test_memory_has_a_limit_and_what_is_kept_does_not_add_up():
  """20 items that keep 100 MB each, where 1 GB is all there is."""
  pool = make(memory=1_000_000_000, seconds=5.0)
  large, = ask(pool, ('memory', 2_000_000_000))
  assert (large['kind'], large['detail']) == ('error', 'MemoryError: ')
  replies = ask(pool, *[('keep', 100)] * 20)
  assert {r['kind'] for r in replies} == {'kept'}
  assert max(r['items'] for r in replies) > 1  # not one process for each
  pool.close()


@pytest.mark.parametrize('items', [0, 1, 6])
def test_nothing_is_left_of_a_closed_pool(items):
  """Whether its two workers are idle or busy, and more items wait."""
  pool = make(workers=2, seconds=20.0)
  replies = ask(pool, *[('pids', 0)] * 20)
  pids = {r[which] for r in replies for which in ('own', 'parent')}
  assert all(map(alive, pids))
  waits = [pool.submit(('spin', 0)) for _ in range(items)]
  time.sleep(0.1)
  start = time.monotonic()
  pool.close()
  assert time.monotonic() - start < 5 and all(w.done() for w in waits)
  for reply in replies:
    with pytest.raises(ProcessLookupError):
      os.kill(reply['parent'], 0)
  deadline = time.monotonic() + 5
  while any(map(alive, pids)) and time.monotonic() < deadline:
    time.sleep(0.01)
  assert not any(map(alive, pids))
  with pytest.raises(ChildProcessError, match='pool of verifiers is closed'):
    pool.submit(('say', 'a'))


def test_a_pool_that_was_never_used_has_no_processes(monkeypatch):
  monkeypatch.setattr(pool_lib.subprocess, 'Popen', None)
  make(workers=3).close()


@pytest.mark.parametrize('last', ['spin', 'say'])
def test_workers_end_with_a_parent_that_is_killed(last):
  """Busy or not. They hold its stderr open, which ends with the last one."""
  code = (
      'import time\nfrom jaxrl_llm.rewards.pool import Pool\n'
      f'pool = Pool({TARGET!r}, workers=2, seconds={LIMIT})\n'
      'pool.submit(("say", "a")).result(), pool.submit(("say", "a")).result()\n'
      f'pool.submit(({last!r}, "a"))\n'
      'print("ready", flush=True)\ntime.sleep(60)')
  process = subprocess.Popen(
      [sys.executable, '-c', code], cwd=ROOT, stdout=subprocess.PIPE,
      stderr=subprocess.PIPE)
  assert process.stdout.readline() == b'ready\n'
  process.kill()
  start = time.monotonic()
  _, said = process.communicate(timeout=20)
  assert time.monotonic() - start < LIMIT + 2
  assert said == b''


def test_a_verifier_that_ignores_signals_ends_with_a_killed_parent(tmp_path):
  note = tmp_path / 'pids'
  code = (
      'import time\nfrom jaxrl_llm.rewards.pool import Pool\n'
      f'pool = Pool({TARGET!r}, workers=1, seconds=500.0)\n'
      f'pool.submit(("deaf", {str(note)!r}))\ntime.sleep(500)')
  process = subprocess.Popen([sys.executable, '-c', code], cwd=ROOT)

  def within(seconds, done):
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
      time.sleep(0.02)
    return done()

  try:
    assert within(60, lambda: note.exists() and note.read_text())
    pids = [*map(int, note.read_text().split())]
    time.sleep(0.1)
    assert all(map(alive, pids))
  finally:
    process.kill()
    process.wait()
  assert within(30, lambda: not any(map(alive, pids)))


@pytest.fixture
def gate(monkeypatch):
  """Event; until it is set, the pool does not learn that a worker died."""
  gate, read = threading.Event(), pool_lib._Worker._read
  def read_late(worker, seconds):
    assert gate.wait(60)
    return read(worker, seconds)
  monkeypatch.setattr(pool_lib._Worker, '_read', read_late)
  return gate


def test_a_pool_that_cannot_start_says_so_once(capfd, gate):
  pool = pool_lib.Pool('tests.nothing:act', workers=2, seconds=1.0)
  waits = [pool.submit(i) for i in range(500)]
  start = time.monotonic()
  gate.set()
  for wait in waits:
    with pytest.raises(ChildProcessError, match='tests.nothing:act.*not start'):
      wait.result()
  assert time.monotonic() - start < 20  # a start takes .1 s at the least
  assert capfd.readouterr().err.count("No module named 'tests.nothing'") <= 2
  with pytest.raises(ChildProcessError, match='does not start'):
    pool.submit(0)
  pool.close()


def test_a_program_that_cannot_be_run(monkeypatch):
  monkeypatch.setattr(sys, 'executable', '/nonexistent/python')
  with pytest.raises(ChildProcessError, match='/nonexistent/python.*be run'):
    make().submit(('say', 'a'))


@pytest.mark.parametrize('kwargs', [
    dict(workers=0), dict(seconds=0.0), dict(seconds=float('nan'))])
def test_a_pool_of_nothing(kwargs):
  with pytest.raises(ValueError, match='can do nothing: use at least 1'):
    make(**kwargs)


class Task:
  """Task that judges in a pool; some responses cannot be submitted."""

  def __init__(self, pool):
    self._pool = pool

  def submit(self, problem, text, truncated):
    if text == 'refuse':
      raise RuntimeError('not this one')
    reply = self._pool.submit((problem, text))
    return lambda: rewards.Verdict(
        float(truncated), reply.result()['kind'], answer=text)


def test_begin_hands_all_in_before_it_waits(pool, tmp_path):
  path = str(tmp_path / 'file')
  verdicts = rewards.submit(
      Task(pool), ['wait', 'say', 'touch'], [path, 'refuse', path],
      [False, False, True])()
  assert [(v.reward, v.kind, v.valid) for v in verdicts] == [
      (0, 'found', True), (0, 'error', False), (1, 'touched', True)]
  assert verdicts[1].detail == 'RuntimeError: not this one'


def test_begin_passes_on_that_nothing_can_be_judged(capfd, gate):
  task = Task(pool_lib.Pool('tests.nothing:act', workers=1, seconds=1.0))
  waits = rewards.submit(task, ['say'] * 2, ['a', 'b'], [False] * 2)
  gate.set()
  for _ in range(2):
    with pytest.raises(ChildProcessError, match='does not start'):
      waits()
  with pytest.raises(ChildProcessError, match='does not start'):
    rewards.submit(task, ['say'], ['a'], [False])
  assert 'tests.nothing' in capfd.readouterr().err


def test_what_has_a_pool_ends_it_and_may_make_another():
  one = pool_lib.Pooled()
  one.close()  # there is none
  one._pool = pool = make()
  one.close()
  assert one._pool is None
  with pytest.raises(ChildProcessError, match='pool of verifiers is closed'):
    pool.submit(('say', 'a'))
