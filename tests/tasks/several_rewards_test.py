"""Tests of several reward functions, async ones, and what they log."""

import asyncio
import json
import math
import re
import sys
import types

import pytest

from jaxrl_llm import rewards, tasks
from tests.helpers import devices

TOKENIZER = types.SimpleNamespace(
    start='', encode=list, chat=lambda turns: '<chat>')


@pytest.fixture(autouse=True)
def restored(monkeypatch):
  monkeypatch.setattr(sys, 'path', [*sys.path])


@pytest.fixture
def make(tmp_path):
  """Returns (code, names of functions) -> task of one problem."""

  def call(code, *names, row=None, **options):
    (tmp_path / 'mine.py').write_text(code)
    (tmp_path / 'a.jsonl').write_text(
        json.dumps(row or {'problem': '1+1?', 'answer': '2'}))
    return tasks.get(
        'math', TOKENIZER, path=(f'{tmp_path}/a.jsonl',), heldout_count=0,
        reward=tuple(f'{tmp_path}/mine.py:{name}' for name in names), **options)

  return call


def judged(task, texts, **facts):
  return rewards.submit(
      task, task.train * len(texts), texts, [False] * len(texts),
      rewards.Facts([[ord(c) for c in text] for text in texts], **facts))()


GIVE = '''
def {name}(completions):
  return [{value} for text in completions]
'''


def give(**values):
  """Returns the code of functions that give a value of each `text`."""
  return ''.join(GIVE.format(name=n, value=v) for n, v in values.items())


def test_rewards_are_summed_with_their_weights(make):
  code = give(
      long='len(text) / 4', odd='None if "?" in text else len(text) % 2')
  task = make(code, 'long', 'odd', reward_weights=(0.5, -2.0))
  found = judged(task, ['abc', 'ab', '?', 'abcd'])
  # 3/8 - 2, 1/4, 1/8 (odd does not count), 1/2.
  assert [v.reward for v in found] == [-1.625, 0.25, 0.125, 0.5]
  assert [v.rewards for v in found] == [
      dict(long=.75, odd=1.), dict(long=.5, odd=0.), dict(long=.25, odd=None),
      dict(long=1., odd=0.)]
  assert [v.kind for v in found] == ['wrong'] + ['partial'] * 3
  assert judged(make(code, 'long', 'odd'), ['abcd', 'abc'])[1] == (
      rewards.Verdict(1.75, 'correct'))


def test_a_response_that_no_function_counts_leaves_its_group(make):
  task = make(give(f='None', g='None if text else 1'), 'f', 'g')
  a, b = judged(task, ['x', ''])
  assert (a.valid, a.kind, a.rewards) == (
      False, 'skipped', dict(f=None, g=None))
  assert b == rewards.Verdict(1.0, 'correct')
  with pytest.raises(rewards.VerifierError, match=(
      'since task.reward=.*py:f returned None: .*; and task.reward=.*py:g '
      'returned None')):
    rewards.check_step([a, a], ['x', 'x'])


def test_each_function_that_fails_is_named_with_its_line(make, tmp_path):
  code = ('def f(completions):\n  return [1 / 0]\n\n'
          'def g(completions):\n  return [2.0] * len(completions)\n\n'
          'async def h(completions):\n  return [{}[5]]\n')
  verdicts = judged(make(code, 'f', 'g', 'h'), ['x', 'y'])
  assert {(v.valid, v.kind, v.detail) for v in verdicts} == {(
      False, 'error', 'f: ZeroDivisionError: division by zero; h: KeyError: '
      '5')}
  assert verdicts[0].rewards == dict(f=None, g=2.0, h=None)
  with pytest.raises(rewards.VerifierError) as error:
    rewards.check_step(verdicts, ['x', 'y'])
  assert str(error.value) == (
      'None of the 2 responses of the step has a reward, since '
      f'task.reward={tmp_path}/mine.py:f fails (ZeroDivisionError: division by '
      f'zero): correct {tmp_path}/mine.py, line 2; and '
      f'task.reward={tmp_path}/mine.py:h fails (KeyError: 5): correct '
      f'{tmp_path}/mine.py, line 8.')


def test_each_result_is_checked(make):
  code = give(f='1', g='"x"')
  with pytest.raises(rewards.VerifierError, match="mine.py:g returned 'x'"):
    judged(make(code, 'f', 'g'), ['x'])


def test_async_functions_run_together(make, capsys):
  """Each waits for the other; a loop of the caller's is no hindrance."""
  code = '''
import asyncio
times = []
state = {}

async def f(completions, log_metric, **kwargs):
  state.setdefault('event', asyncio.Event())
  print('f waits')
  await asyncio.wait_for(state['event'].wait(), 20)
  print('f', end=' ')
  await asyncio.sleep(0)
  print('goes on')
  log_metric('waited', 1)
  return [1.0 for _ in completions]

async def g(completions):
  await asyncio.sleep(0)
  print('g is here')
  state['event'].set()
  return [2.0 for _ in completions]

async def last(completions):
  raise SystemExit(3)
'''
  task = make(code, 'f', 'g')

  async def inside():
    return judged(task, ['x', 'y'])

  assert [v.reward for v in asyncio.run(inside())] == [3.0, 3.0]
  # The loop stays: clients of a service belong to one.
  assert judged(task, ['x'])[0].logged == dict(waited=1.0)
  assert capsys.readouterr().out.splitlines()[:3] == [
      'f: f waits', 'g: g is here', 'f: f goes on']
  task.close()
  verdict, = judged(make(code, 'last'), ['x'])
  assert (verdict.kind, verdict.detail) == ('error', 'SystemExit: 3')


def test_prints_have_the_name_of_their_function(make, capsys):
  code = '''
import sys

def f(completions):
  print('one\\ntwo', 'x')
  print('no end', end='')
  assert sys.stdout.encoding
  return [1]

def g(completions):
  print()
  raise ValueError
'''
  judged(make(code, 'f', 'g'), ['x'])
  print('after')
  assert capsys.readouterr().out == (
      'f: one\nf: two x\nf: no end\ng: \nafter\n')


def test_what_functions_log(make):
  code = '''
def f(completions, log_metric, log_extra, trainer_state):
  log_metric('share', trainer_state.global_step / trainer_state.max_steps)
  log_metric('share', 1)
  log_extra('length', [len(text) for text in completions])
  return [0.0] * len(completions)

def g(completions, completion_ids, log_extra, **kwargs):
  kwargs['log_metric']('share', 2.5)
  log_extra('ids', completion_ids)
  return [0.0] * len(completions)

def h(log_extra, **kwargs):
  log_extra('few', [1])
'''
  found = judged(make(code, 'f', 'g'), ['ab', 'c'], step=3, steps=6)
  assert [v.logged for v in found] == [dict(share=4 / 3)] * 2
  assert [v.extra for v in found] == [
      dict(length=2, ids=[97, 98]), dict(length=1, ids=[99])]
  with pytest.raises(rewards.VerifierError, match=(
      r"log_extra got 1 values of 'few' for 2 responses\): correct .*, line "
      '14')):
    rewards.check_step(judged(make(code, 'h'), ['ab', 'c']), ['ab', 'c'])
  # Without the tokens of a sampler, the tokeniser's.
  task = make(code, 'g')
  assert task.verify(task.train[0], 'xy', False).extra == dict(ids=['x', 'y'])


def test_completions_of_messages_are_messages(make):
  messages = [{'role': 'user', 'content': '1+1?'}]
  code = '''
def f(prompts, completions, tags, meta):
  assert prompts == [MESSAGES] and tags == [['a', 'b']] and meta == [{'x': [1]}]
  return [float(completions == [[{'role': 'assistant', 'content': 'two'}]])]
'''.replace('MESSAGES', repr(messages))
  task = make(code, 'f', row={
      'prompt': messages, 'tags': ['a', 'b'], 'meta': {'x': [1]}})
  assert judged(task, ['two']) == [rewards.Verdict(1.0, 'correct')]


@pytest.mark.parametrize('names, options, said', [
    (('f', 'g'), dict(reward_weights=(1.0,)),
     r'task.reward_weights=\(1.0,\) has 1 numbers for the 2 functions'),
    ((), dict(reward_weights=(1.0,)), 'for the 0 functions of task.reward'),
    (('f', 'f'), {}, 'names two functions mine.f: rename one'),
    (('f', 'x'), {}, "mine.py has no function 'x'"),
    (('f', 'needs'), {}, "mine.py:needs needs 'absent'")])
def test_functions_that_cannot_be_used_together(make, names, options, said):
  code = give(f='1', g='1') + '\ndef needs(absent):\n  pass\n'
  with pytest.raises(ValueError, match=said):
    make(code, *names, **options)


def test_names_of_functions(make, tmp_path):
  """Two of one name are told apart by their files."""
  (tmp_path / 'other.py').write_text(give(f='2'))
  code = give(f='1') + '''
import functools

def base(completions, value):
  return [value for _ in completions]

partly = functools.partial(base, value=3)

class Judge:
  def __call__(self, completions):
    return [4 for _ in completions]

judge = Judge()
'''
  task = make(code, 'f', 'partly', 'judge')
  task = tasks.get('math', TOKENIZER, path=task.options.path, heldout_count=0,
                   reward=(*task.options.reward, f'{tmp_path}/other.py:f'))
  assert judged(task, ['x'])[0].rewards == {
      'mine.f': 1.0, 'base': 3.0, 'Judge': 4.0, 'other.f': 2.0}


def test_a_sum_that_is_too_large(make):
  task = make(give(f='9e14', g='9e14'), 'f', 'g')
  verdict, = judged(task, ['x'])
  assert verdict.kind == 'error' and 'reward_weights' in verdict.detail
  assert math.isfinite(verdict.reward)


def test_the_examples_of_the_page(tmp_path):
  """docs/rewards.md: its functions judge rows of the forms that it shows."""
  page = (devices.ROOT / 'docs/rewards.md').read_text()
  blocks = re.findall(r'```python\n(.*?)```', page, re.DOTALL)
  for block in blocks[:-1]:
    (tmp_path / block.split()[1]).write_text(block)
  script = {'__name__': 'script'}
  exec(blocks[-1], script)  # pylint: disable=exec-used
  messages = dict(script['rows'][0], data_source='own', extra_info={},
                  reward_model={'ground_truth': '0'})
  path = tmp_path / 'a.jsonl'
  for row, functions, want in (
      ({'problem': '0 + 0 =', 'answer': '0'}, ['my_rewards.py:exact'], 1),
      # 1 of correct, none of short for 12 tokens, 1 of judged.
      ({'problem': '0 + 0 =', 'answer': '0'}, [
          f'several.py:{name}' for name in ('correct', 'short', 'judged')], 2),
      (messages, ['from_verl.py:reward'], 1)):
    path.write_text(json.dumps(row))
    task = tasks.get(
        'math', TOKENIZER, path=(str(path),), heldout_count=0,
        reward=tuple(f'{tmp_path}/{name}' for name in functions))
    verdict, = judged(task, ['therefore: 0'])
    assert verdict.reward == want and len(verdict.rewards) == len(functions)
    task.close()
  assert script['exact']([[dict(content=' 0')]], ['0']) == [1]
