"""Tests of tools: how calls are answered, and functions described."""

import importlib
import json
import types

import pytest

from jaxrl_llm.environments import tools, worker
from jaxrl_llm.rewards import sandbox
from tests.helpers.bubblewrap import NEEDED

CALCULATOR = 'jaxrl_llm.examples.calculator:calculator'


def call(name, **arguments):
  text = json.dumps({'name': name, 'arguments': arguments})
  return f'<tool_call>\n{text}\n</tool_call>'


def test_calls_are_answered_in_a_worker(tmp_path):
  file = tmp_path / 'own.py'
  file.write_text('def half(n: int) -> float:\n'
                  '  """Halves.\n\n  Args:\n    n: A number.\n  """\n'
                  '  return n / 2\n\n'
                  'def bare(n):\n  return n\n')
  name = f'{tools.PREFIX}{CALCULATOR},{file}:half'

  def step(text):
    return worker.step(dict(
        name=name, key='k', problem={}, prompt='', seed=0, texts=[text],
        observations=[]))

  assert step(call('calculator', expression='3*(4+5)'))['observation'] == '27'
  assert step(call('half', n=3) + call('half', n=4))['observation'] == (
      '1.5\n2.0')
  for text, said in (
      (call('half', n='x'), 'Error: TypeError: '),
      (call('half', m=3), "Error: half: missing a required argument: 'n'."),
      (call('third', n=3), 'Error: there is no tool third; there is '
       'calculator, half.'),
      (call('calculator', expression='1/0'), 'Error: ValueError: division by'),
      ('<tool_call>x</tool_call>', 'Error: the call is not valid JSON')):
    assert step(text)['observation'].startswith(said), text
  assert step('It is 27.')['observation'] is None
  assert step(f'<think>{call("half", n=3)}</think>')['observation'] is None
  schema, = tools.schemas([f'{file}:half'])
  assert schema['function']['name'] == 'half'
  assert schema['function']['parameters']['properties']['n'] == {
      'type': 'integer', 'description': 'A number.'}
  with pytest.raises(ValueError, match='task.tools=.*bare has no description'):
    tools.schemas([f'{file}:bare'])


def test_calls_of_earlier_turns_are_not_made_again(tmp_path):
  file = tmp_path / 'own.py'
  file.write_text('made = []\n\ndef count(n: int) -> str:\n  """Counts.\n\n'
                  '  Args:\n    n: A number.\n  """\n'
                  '  made.append(n)\n  return str(made)\n')
  texts, said = [], []
  for n in range(3):
    texts.append(call('count', n=n))
    # Another worker does not know the turns before.
    worker._kept.clear()
    found = worker.step(dict(
        name=f'{tools.PREFIX}{file}:count', key='k', problem=None, prompt='',
        seed=0, texts=texts, observations=said))
    assert found['kind'] == 'turn'
    said.append(found['observation'])
  assert said == ['[0]', '[0, 1]', '[0, 1, 2]']


FUNCTIONS = '''
import argparse, asyncio, functools, sys

def add(a: int, b: int = 2) -> int:
  """Adds.

  Args:
    a: One.
    b: Other.
  """
  return a + b

def exits(n: int):
  """Ends.

  Args:
    n: A number.
  """
  sys.exit(n)

def parses(n: int):
  """Parses.

  Args:
    n: A number.
  """
  argparse.ArgumentParser().parse_args(['--no'])

def interrupts(n: int):
  """Interrupts.

  Args:
    n: A number.
  """
  raise KeyboardInterrupt

class Silent:
  def __str__(self):
    sys.exit(2)

def silent(n: int):
  """Returns what has no text.

  Args:
    n: A number.
  """
  return Silent()

def half(n: int):
  """Returns half of a character.

  Args:
    n: A number.
  """
  return '\\ud800 x'

loops = []

async def waits(n: int) -> str:
  """Waits.

  Args:
    n: A number.
  """
  await asyncio.sleep(0)
  loops.append(asyncio.get_running_loop())
  return f'{n} of {len({*loops})}'

async def leaves(n: int):
  """Ends.

  Args:
    n: A number.
  """
  sys.exit(n)

def counts(n: int):
  """Counts.

  Args:
    n: A number.
  """
  yield from range(n)

async def counts_late(n: int):
  """Counts.

  Args:
    n: A number.
  """
  for i in range(n):
    yield i

class Search:
  """Searches.

  Args:
    a: What for.
  """
  def __call__(self, a: int, **more) -> int:
    return a + 1

  def method(self, a: int) -> int:
    """Adds one.

    Args:
      a: One.
    """
    return a + 1

search = Search()
bound = search.method
fixed = functools.partial(add, b=5)
first = functools.partial(add, 1)
wrapped = functools.lru_cache(add)

def timed(function):
  def inner(*args, **kwargs):
    return function(*args, **kwargs)
  return inner

bare = timed(add)
nameless = lambda a: a
'''


@pytest.fixture(scope='module')
def functions(tmp_path_factory):
  path = tmp_path_factory.mktemp('tools') / 'functions.py'
  path.write_text(FUNCTIONS)
  return path


def answer(functions, name, text, tags='think'):
  return worker.step(dict(
      name=f'{tools.PREFIX}{functions}:{name};{tags}', key='k', problem={},
      prompt='', seed=0, texts=[text], observations=[]))['observation']


@pytest.mark.parametrize('name, said', [
    ('exits', 'Error: SystemExit: 1'), ('parses', 'Error: SystemExit: 2'),
    ('interrupts', 'Error: KeyboardInterrupt:'),
    ('silent', 'Error: SystemExit: 2'), ('half', '\ufffd x'),
    ('waits', '1 of 1'), ('leaves', 'Error: SystemExit: 1'),
    ('counts', '[0]'), ('counts_late', '[0]')])
def test_no_function_ends_a_trajectory(functions, name, said):
  for _ in range(2):  # all calls of `async` functions have one loop
    assert answer(functions, name, call(name, n=1)) == said


@pytest.mark.parametrize('name, called, takes, said', [
    ('search', 'search', {'a'}, '2'), ('bound', 'method', {'a'}, '2'),
    ('fixed', 'fixed', {'a'}, '6'), ('wrapped', 'add', {'a', 'b'}, '3')])
def test_what_may_be_a_tool(functions, name, called, takes, said):
  schema = tools.schemas([f'{functions}:{name}'])[0]['function']
  assert schema['name'] == called
  assert {*schema['parameters']['properties']} == takes
  assert answer(functions, name, call(called, a=1)) == said


def test_a_result_can_be_encoded(functions):
  _, said, _ = tools.Tools([f'{functions}:half']).step(None, call('half', n=1))
  assert said == '\ufffd x'


def test_a_call_gives_no_argument_that_a_partial_has_given(functions):
  assert 'argument \'b\'' in answer(functions, 'fixed', call('fixed', a=1, b=0))
  assert answer(functions, 'first', call('first', b=1)) == '2'
  assert 'argument \'a\'' in answer(functions, 'first', call('first', a=2))


@pytest.mark.parametrize('names, said', [
    (['bare'], 'takes args by its position.*functools.wraps'),
    (['nameless'], 'nameless has no description'),
    (['Search'], 'Search is a class'),
    (['add', 'wrapped'], 'py:add and .*py:wrapped, which are both add')])
def test_what_is_no_tool_is_refused_at_the_start(functions, names, said):
  names = [f'{functions}:{name}' for name in names]
  with pytest.raises(ValueError, match=said):
    tools.schemas(names)


def test_calls_are_read_behind_the_reasoning(functions):
  draft, real = call('add', a=1), call('add', a=2)
  for text, said in (
      (f'<think>Try {draft}?</think>{real}', '4'),
      (f'Try {draft}?</think>{real}', '4'),
      (f'<think>{draft}</think>It is 3.', None), (f'<think>{draft}', None)):
    assert answer(functions, 'add', text) == said
  assert answer(functions, 'add', f'<think>{draft}</think>', tags='') == '3'
  assert answer(functions, 'add', f'<a>{draft}</a>{real}', tags='b,a') == '4'


def test_the_interpreter_says_at_the_start_that_there_is_no_sandbox(
    monkeypatch):
  module = 'jaxrl_llm.environments.python_tool'
  made = tools.Tools([f'{CALCULATOR}', f'{module}:python'])
  python_tool = importlib.import_module(module)
  python_tool._executor.cache_clear()
  monkeypatch.setattr('shutil.which', lambda name: None)
  with pytest.raises(ValueError, match=(
      'The tool python needs bubblewrap: .*apt install bubblewrap.*, or leave '
      'the tool out of task.tools')) as error:
    made.ready()
  assert 'task.sandbox' not in str(error.value)


def test_a_sandbox_that_fails_is_no_result_of_a_call(monkeypatch):
  module = 'jaxrl_llm.environments.python_tool'
  python_tool = importlib.import_module(module)

  def run(*args, **kwargs):
    raise sandbox.SandboxError('no more processes')

  monkeypatch.setattr(
      python_tool, '_executor', lambda: types.SimpleNamespace(run=run))
  with pytest.raises(ValueError, match='no more processes'):
    worker.step(dict(
        name=f'{tools.PREFIX}{module}:python', key='k', problem={}, prompt='',
        seed=0, texts=[call('python', code='1')], observations=[]))


@NEEDED
def test_a_program_of_the_model_runs_in_the_sandbox():
  name = f'{tools.PREFIX}jaxrl_llm.environments.python_tool:python'

  def step(code):
    return worker.step(dict(
        name=name, key='k', problem={}, prompt='', seed=0,
        texts=[call('python', code=code)], observations=[]))['observation']

  assert step('print(sum(range(10)))') == '45\n'
  assert step('print(1)\n1/0') == (
      '1\nError: ZeroDivisionError: division by zero')
