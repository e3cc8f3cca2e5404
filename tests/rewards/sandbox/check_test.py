"""Tests of executors: limits, literals, and tests run against a proxy."""

import collections
import contextlib
import dataclasses
import decimal
import enum
import fractions
import math
import os
import subprocess
import sys
import tempfile
import time

import pytest

from jaxrl_llm.rewards import sandbox
from jaxrl_llm.rewards.sandbox import process, ProgramLimits, Suite
from jaxrl_llm.rewards.sandbox.guest import frames, literals
from tests.helpers.bubblewrap import NEEDED

LIMITS = ProgramLimits(seconds=1, wall=6)
EXECUTORS = [pytest.param('bubblewrap', marks=NEEDED), 'subprocess']
SET = collections.namedtuple('SET', 'x y')(1, 2)


class Number(enum.IntEnum):
  TWO = 2


class Liar(int):
  """Equal to everything."""

  def __eq__(self, other):
    return True

  def __hash__(self):
    return 0

  def __int__(self):
    return 99


def none(*_):
  raise ValueError('no literal')


@pytest.fixture(scope='module', params=EXECUTORS)
def executor(request):
  return sandbox.make(request.param, allow_unsafe=True)


@pytest.mark.parametrize('value', [
    None, True, 0, -5, 10 ** 4000, 1.5, -0.0, math.inf, 1 - 2j, 'a\ud800é\0',
    b'x\0', bytearray(b'y'), [1, [2, ()]], {1, 2}, frozenset([1]),
    {'a': {(1, 2): 3}}, range(1, 9, 2), int, ..., collections.Counter('aab'),
    collections.OrderedDict(b=1, a=2), collections.deque([1, 2], 5),
    fractions.Fraction(1, 3), decimal.Decimal('1.10'), {'a': 1}.keys(),
    {'a': 1}.items()], ids=lambda value: type(value).__name__)
def test_literals_come_back(value):
  back = literals.load(literals.dump(value, none), none)
  assert type(back) is type(value) and back == value
  assert repr(back) == repr(value)


def test_nan_comes_back():
  assert math.isnan(literals.load(literals.dump(math.nan, none), none))


@pytest.mark.parametrize('value, plain', [
    (Liar(3), 3), (Number.TWO, 2), (SET, (1, 2)),
    (collections.defaultdict(int, a=1), {'a': 1}),
    (type('S', (str,), {'__eq__': lambda *_: True, '__hash__': hash})('x'),
     'x')])
def test_subclasses_cross_as_their_base(value, plain):
  back = literals.load(literals.dump(value, none), none)
  assert type(back) is type(plain) and plain == back


@pytest.mark.parametrize('data', [
    b'', b'?', b'i;', b'izz;', b's5;ab', b'l3;N', b'l-1;', b'NN', b'X3;foo',
    b'S1;l0;', b'd1;i1;', b'R2;i1;i0;', b'r3;i1;i1;i0;', b'l1;' * 200 + b'N',
    b'h0;', b's2;\xff\xff', b'Mf;9', b'lffffffff;N'])
def test_what_is_no_literal_is_refused(data):
  with pytest.raises(ValueError):
    literals.load(data, none)


def test_cycles_and_depth_are_refused():
  cycle = []
  cycle.append(cycle)
  with pytest.raises(ValueError, match='deeply'):
    literals.dump(cycle, none)


def test_program_runs_with_its_input_and_files(executor):
  result = executor.run(
      'import os, sys\n'
      'print(input(), open("data.txt").read(), __name__, dict(os.environ))\n'
      'print("e", file=sys.stderr)\nsys.exit(3)',
      stdin=b'hello\n', files={'data.txt': b'42'}, limits=LIMITS)
  assert (result.status, result.exit_code) == ('exit', 3)
  assert result.stdout == b'hello 42 __main__ {}\n'
  assert result.stderr == b'e\n'


@pytest.mark.parametrize('program, status', [
    ('while True: pass', 'timeout'),
    ('import sys\nwhile True: sys.stdout.write("x" * 1000)', 'output'),
    ('import os\nos.abort()', 'killed'), ('print(1)', 'ok'),
    ('exit(0)', 'ok'), ('quit()', 'ok'), ('exit(2)', 'exit'),
    ('import sys\nsys.exit(200)', 'exit')])
def test_status(executor, program, status):
  began = time.monotonic()
  result = executor.run(program, limits=LIMITS)
  assert result.status == status
  assert len(result.stdout) <= LIMITS.output
  assert time.monotonic() - began < LIMITS.wall + 5


def test_memory_is_limited(executor):
  result = executor.run(
      'import time\nx = bytearray(200_000_000)\ntime.sleep(1)\n'
      'try:\n  bytearray(10 ** 9)\nexcept MemoryError:\n  print("refused")',
      limits=LIMITS)
  assert result.stdout == b'refused\n'
  assert 200_000_000 <= result.peak_bytes <= LIMITS.memory


@NEEDED
def test_children_and_their_memory_are_limited():
  executor = sandbox.make('bubblewrap')
  many = executor.run(
      'import os, time\nfor _ in range(200):\n  if not os.fork():\n'
      '    time.sleep(9)\ntime.sleep(9)',
      limits=LIMITS)
  # A limit of Linux or, for root, which has none, the count of the tree.
  assert many.status in ('exit', 'processes')
  big = executor.run(
      'import os, time\nfor _ in range(3):\n  if not os.fork(): break\n'
      'x = bytearray(100_000_000)\ntime.sleep(9)',
      limits=dataclasses.replace(LIMITS, memory=300_000_000))
  assert big.status == 'memory'


# What the program is; the tests; the kind of each.
CHECKS = {
    'each test costs itself': (
        'import os, sys, time\n'
        'def f(x):\n'
        '  if x == 1: os._exit(0)\n'
        '  if x == 2: sys.exit(0)\n'
        '  if x == 3: return [0] * 10 ** 9\n'
        '  while x == 4: pass\n'
        '  return x\n',
        ['assert f(0) == 0', 'assert f(1) == 1', 'assert f(2) == 2',
         'assert f(3) == 3', 'assert f(4) == 4', 'assert f(5) == 6',
         'assert f(7) == 7'],
        'passed killed exception memory timeout wrong passed'),
    'classes of the program': (
        'class Stack:\n'
        '  def __init__(self): self.items = []\n'
        '  def push(self, x): self.items.append(x)\n'
        '  def pop(self): return self.items.pop()\n'
        '  def __len__(self): return len(self.items)\n',
        ['s = Stack()\ns.push(1)\nassert len(s) == 1 and s.items == [1]\n'
         'assert isinstance(s, Stack) and s.pop() == 1 and not s',
         's = Stack()\ntry:\n  s.pop()\nexcept IndexError as e:\n'
         '  assert str(e) == "pop from empty list"\nelse:\n  assert False',
         's = Stack()\ns.items = [5]\nassert s.pop() == 5',
         'assert Stack() == Stack()'],
        'passed passed passed wrong'),
    'arguments, functions and iterators': (
        'def f(xs): xs.append(3)\n'
        'def g(h, *xs, **named): return h(*xs, *named.values())\n'
        'def count(n):\n  for i in range(n): yield i\n',
        ['x = [1]\nf(x)\nassert x == [1, 3]',
         'assert g(lambda a, b: a * b, 3, b=4) == 12', 'assert g(abs, -3) == 3',
         'assert list(count(3)) == [0, 1, 2] and next(count(1)) == 0'],
        'passed passed passed passed'),
    'what it does as the main program is not run': (
        'import unittest\n'
        'def f(x): return x + 1\n'
        'class T(unittest.TestCase):\n'
        '  def test(self): self.assertEqual(f(1), 2)\n'
        'if __name__ == "__main__":\n'
        '  print(f(int(input())))\n  unittest.main()\n',
        ['assert f(1) == 2'], 'passed'),
    'it may end when all of it has run': (
        'import sys\ndef f(x): return x + 1\nprint(f(1))\nsys.exit(0)\n',
        ['assert f(1) == 2', 'assert f(1) == 3'], 'passed wrong'),
    'it may not end with a fault': (
        'def f(x): return x + 1\nexit(1)\n', ['assert f(1) == 2'],
        'exception'),
    'errors of its own': (
        'class Poor(ValueError):\n'
        '  def __init__(self, cents):\n'
        '    super().__init__("no money")\n    self.cents = cents\n'
        'class Poorer(Poor): pass\n'
        'class Bare(Exception): pass\n'
        'def f(kind, *args): raise globals()[kind](*args)\n'
        'def g(): return Poorer(3)\n'
        'def h(): return {}["a"]\n',
        ['try:\n  f("Poor", 3)\nexcept ValueError as e:\n'
         '  assert str(e) == "no money" and e.cents == 3\n'
         'else:\n  assert False',
         'try:\n  f("Poorer", 3)\nexcept Poor as e:\n  assert e.cents == 3\n'
         'else:\n  assert False',
         'try:\n  f("Poor", 3)\nexcept Poorer:\n  pass',
         'try:\n  f("Bare", "bad")\nexcept Exception as e:\n'
         '  assert str(e) == "bad"\nelse:\n  assert False',
         'e = g()\nassert isinstance(e, Poorer) and isinstance(e, Poor)\n'
         'assert not isinstance(e, Bare) and not isinstance(3, Poor)',
         'try:\n  h()\nexcept KeyError as e:\n'
         '  assert str(e) == "\'a\'" and e.args == ("a",)\n'
         'else:\n  assert False',
         'f("Poor", 3)',
         # The error is the program's, so it is no assertion of the test.
         'f("AssertionError", "x")'],
        'passed passed exception passed passed passed exception exception'),
    'with, del and arguments by name': (
        'class Bag:\n'
        '  def __init__(self): self.held, self.left = {1: 2}, []\n'
        '  def __delitem__(self, key): del self.held[key]\n'
        '  def __enter__(self): return self.held\n'
        '  def __exit__(self, kind, error, trace):\n'
        '    self.left.append((kind and kind.__name__, str(error)))\n'
        '    return True\n'
        'def f(xs=None, ys=None): xs.append(3), ys.update(a=1)\n',
        ['b = Bag()\nwith b as held:\n  assert held == {1: 2}\n'
         'assert b.left == [(None, "None")]',
         'b = Bag()\ndel b[1]\nassert b.held == {}\ndel b.left\n'
         'try:\n  b.left\nexcept AttributeError:\n  pass\n'
         'else:\n  assert False',
         'x, y = [1], {}\nf(xs=x, ys=y)\nassert x == [1, 3] and y == {"a": 1}',
         'x, y = [1], {}\nf(x, ys=y)\nassert x == [1, 3] and y == {"a": 1}',
         'b = Bag()\ntry:\n  with b:\n    raise ValueError("no")\n'
         'except ValueError:\n  assert b.left == [("ValueError", "no")]\n'
         'else:\n  assert False',
         # It may not say that an assertion does not matter.
         'with Bag():\n  assert 1 == 2',
         'with Bag() as b:\n  b.no\n  assert 1 == 2'],
        'passed passed passed passed passed wrong exception'),
    'errors of the functions of a test': (
        'def f(h):\n'
        '  try:\n    return h(3)\n'
        '  except ValueError as e:\n    return str(e)\n',
        ['def h(x): raise ValueError("no")\nassert f(h) == "no"',
         'class Own(ValueError): pass\n'
         'def h(x): raise Own("no")\nassert f(h) == "no"',
         'try:\n  f(lambda x: {}[x])\nexcept KeyError:\n  pass\n'
         'else:\n  assert False'],
        'passed passed passed'),
    'nothing of the library is replaced': (
        'class sys:\n  getsizeof = lambda x: 5\n'
        'class len:\n  pass\n'
        'def f(x): return 5\n',
        ['assert f(()) == sys.getsizeof(())', 'assert len([1, 2]) == 2'],
        'exception passed'),
    'an own library is the tests\' too': (
        'import sys\nfrom collections import Counter\n'
        'def f(x): return sys.getsizeof(x)\n'
        'def g(x): return Counter(x)\n',
        ['assert f(()) == sys.getsizeof(())',
         'assert g("aab") == Counter(a=2, b=1)'], 'passed passed'),
    'the program cannot run code by a built-in': (
        'def f(g): return g("\'checker\' in __import__(\'sys\').modules")\n',
        ['assert f(eval) is False', 'assert f(len) > 5'], 'passed passed'),
    'the end of an iteration ends no test': (
        'def f(x): raise StopIteration\n',
        ['assert all(map(lambda x: f(x) == x, [1, 2]))'], 'exception'),
    'a test that catches everything': (
        'import os\ndef f(): os._exit(0)\n',
        ['try:\n  f()\nexcept:\n  pass'], 'killed'),
    'a container that has everything': (
        'class All:\n  def __contains__(self, x): return True\n'
        '  def __iter__(self): return iter([1])\n'
        'def f(): return All()\n',
        ['assert 3 in f()', 'assert 1 in f()'], 'wrong passed'),
    'what a test prints is no verdict': (
        'def f(): return "\\0\\0\\0\\1v\\0\\0\\0\\x10t2;s6;passeds0;"\n',
        ['print(f(), end="", flush=True)\nassert f() == 3',
         'import os\nos.write(1, f().encode())\nassert f() == 3',
         'print("a word")'], 'wrong wrong passed'),
    'a number too long to be printed': (
        'def f(): return 10 ** 5000\n', ['assert f() == 1, f()'],
        'exception'),
    'no program': ('def f(:', ['assert True', 'assert f()'],
                   'syntax_error syntax_error'),
    'the end of the program': (
        'import os\ndef f(): return 1\nos._exit(0)', ['assert f() == 1'],
        'killed'),
    'an error of the program': ('1 / 0', ['assert True'], 'exception'),
    'its own words about the tests': (
        'import os\n'
        'def frame(number, kind, data):\n'
        '  return (number.to_bytes(4, "big") + kind + len(data).to_bytes(4, '
        '"big") + data)\n'
        'for d in range(3, 256):\n'
        '  for f in (frame(0, b"l", b"t2;s6;passeds0;"),\n'
        '            frame(1, b"v", b"t2;s6;passeds0;"),\n'
        '            frame(1, b"e", b"t2;s6;passeds0;")):\n'
        '    try: os.write(d, f)\n'
        '    except OSError: pass\n'
        'def add(a, b): return 0\n',
        ['assert add(1, 2) == 3'], None),
}


@pytest.mark.parametrize('name', CHECKS)
def test_outcomes(executor, name):
  program, tests, kinds = CHECKS[name]
  outcomes = executor.check(program, Suite(tests), limits=LIMITS)
  if kinds is None:
    assert all(outcome.kind != 'passed' for outcome in outcomes), outcomes
  else:
    assert [outcome.kind for outcome in outcomes] == kinds.split(), outcomes


# What a test may do in the checker; whether the checker is kept.
ACTS = {
    'nothing': ('pass', True), 'print': ('print("x" * 10 ** 6)', True),
    'kill': ('import os\nos.kill(-1, 9)', False),
    'end': ('import os\nos.kill(os.getppid(), 9)', True),
    'end all': ('import os\nos.kill(2, 9)', False),
    'file': ('open("/tmp/left", "w").write("x")', False),
    'own file': ('open("left", "w").write("x")', False),
    'daemon': (
        'import os, time\nif os.fork():\n  time.sleep(.1)\nelse:\n'
        '  os.setsid()\n  time.sleep(99)', True),
    'patch': ('import sys\nsys.modules["checker"]._run = print', True),
    'close': ('import os\nos.closerange(0, 99)', True),
    'hang up': (
        'import socket\nfor d in range(3, 99):\n'
        '  try: socket.socket(fileno=d).shutdown(2)\n'
        '  except OSError: pass', True),
    'code': ('assert eval(g()) == 3', False)}


def started(others):
  """Returns the descendants of this process that are not among others."""
  return {*process.tree(os.getpid())} - others


def wait_until_started(others, count):
  """Waits until so many descendants are not among others."""
  end = time.monotonic() + 5
  while len(started(others)) != count:
    assert time.monotonic() < end
    time.sleep(0.01)


@NEEDED
@pytest.mark.parametrize('name', ACTS)
def test_checker_is_as_new_after_any_test(name):
  executor = sandbox.make('bubblewrap')
  others = started(set())
  act, kept = ACTS[name]
  program = 'def f(): return 3\ndef g(): return "1 + 2"'

  def outcomes(*tests):
    return [outcome.kind for outcome in executor.check(
        program, Suite(tests), limits=LIMITS)]

  outcomes('assert f() == 3')
  first = started(others)
  with contextlib.suppress(sandbox.SandboxError):  # its own checker is killed
    outcomes(act)
  assert outcomes(
      'import os\nassert os.listdir("/tmp") == os.listdir() == []\n'
      'assert f() == 3', 'assert f() == 4') == ['passed', 'wrong']
  # Two processes are bwrap's, one is the checker.
  assert (len(first & started(others)) >= 3) == kept
  wait_until_started(others, 3)
  executor.close()
  wait_until_started(others, 0)


@pytest.mark.parametrize('name', EXECUTORS)
def test_forgotten_executor_keeps_nothing(name):
  executor = sandbox.make(name, allow_unsafe=True)
  others = started(set())
  executor.check('', Suite(['assert True']), limits=LIMITS)
  assert started(others)
  del executor
  wait_until_started(others, 0)


@pytest.mark.parametrize('literal', [
    b"d4;s6;passedNi0;s9;exception", b't3;s9;exceptionNN', b't1;s9;exception',
    b'd0;', b't2;s9;exceptioni' + b'f' * 5000 + b';', b't2;s6;passeds0;',
    b't2;s9;exceptions' + b'%x;' % 20_000 + b'x' * 20_000, b'T', b'l1;N',
    b't2;s9;exceptionN', b'?', b''], ids=lambda literal: literal[:20])
def test_own_reason_of_a_program_that_has_ended(literal):
  """Whatever it says of its start, or of its end, is no pass and no error."""
  executor = sandbox.make('subprocess', allow_unsafe=True)
  limits = ProgramLimits(seconds=1, wall=3)
  frame = ('import os\ndef send(number, kind, data):\n'
           '  data = (number.to_bytes(4, "big") + kind'
           ' + len(data).to_bytes(4, "big") + data)\n'
           '  for d in range(3, 64):\n'
           '    try: os.write(d, data)\n    except OSError: pass\n')
  tests = Suite(['assert add(1, 2) == 3', 'try:\n  add(1, 2)\nexcept:\n  pass'])
  for program in (
      f'{frame}send(0, b"l", {literal})\ndef add(a, b): return 0\n',
      f'{frame}def add(a, b): send(1, b"e", {literal}); os._exit(0)\n'):
    outcomes = executor.check(program, tests, limits=limits)
    # An end that is said too early may cost the program its next test.
    assert {outcome.kind for outcome in outcomes} <= {
        'exception', 'killed', 'timeout'}, outcomes
    assert all(len(outcome.detail) < 10_000 for outcome in outcomes)


def test_setup_is_trusted_and_entries_are_the_programs(executor):
  program = ('def helper(x): return "forged"\n'
             'def sum(a, b): return a * b\n')
  outcomes = executor.check(program, Suite(
      ['assert helper(1) == 2', 'assert sum(2, 3) == 6'],
      setup='def helper(x): return x + 1\ndef sum(a, b): pass',
      entries=['sum']))
  assert [outcome.kind for outcome in outcomes] == ['passed', 'passed']


def test_deep_folders_are_deleted(executor, monkeypatch, tmp_path):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  result = executor.run(
      'import os\nfor _ in range(2000):\n  os.mkdir("d")\n  os.chdir("d")\n'
      'print(1)')
  assert result.stdout == b'1\n'
  assert not [*tmp_path.iterdir()]


def test_hashes_of_texts_are_the_same_each_time(executor):
  program = 'def f(): return list({str(i) for i in range(50)})'
  first = executor.run(program + '\nprint(f())').stdout
  assert executor.run(program + '\nprint(f())').stdout == first


def test_subprocess_needs_a_yes():
  with pytest.raises(ValueError, match='allow_unsafe=True'):
    sandbox.make('subprocess')


def test_what_is_wrong_with_bubblewrap_is_said(monkeypatch, tmp_path):
  monkeypatch.setenv('PATH', str(tmp_path))
  with pytest.raises(ValueError, match='apt install bubblewrap'):
    sandbox.make('bubblewrap')
  fake = tmp_path / 'bwrap'
  fake.write_text('#!/bin/sh\necho "bwrap: no permissions" >&2\nexit 1\n')
  fake.chmod(0o755)
  monkeypatch.setenv('PATH', f'{tmp_path}:/bin:/usr/bin')
  with pytest.raises(ValueError, match='no permissions.*user namespaces'):
    sandbox.make('bubblewrap')


def test_long_frames_are_refused():
  channel = frames.PipeEnd(-1, -1, b'\0\0\0\1v\xff\xff\xff\xff')
  with pytest.raises(frames.Closed):
    channel.waiting()


@NEEDED
@pytest.mark.parametrize('use', [
    'check("", sandbox.Suite(["import time; time.sleep(99)"]))',
    'check("", sandbox.Suite(["assert True"])); import time; time.sleep(99)'])
def test_killed_parent_leaves_nothing(use):
  code = ('from jaxrl_llm.rewards import sandbox\nbox = sandbox.make()\n'
          f'box.{use}')
  parent = subprocess.Popen([sys.executable, '-c', code])
  end = time.monotonic() + 30
  while len(children := process.tree(parent.pid)) < 4:
    assert time.monotonic() < end
    time.sleep(0.01)
  parent.kill()
  parent.wait()
  while any(os.path.exists(f'/proc/{pid}') for pid in children[1:]):
    assert time.monotonic() < end
    time.sleep(0.01)
