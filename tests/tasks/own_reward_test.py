"""Tests of rewards by the user's functions: what they get, what they return."""

import decimal
import fractions
import io
import json
import sys
import threading
import types

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxrl_llm import rewards, tasks
from jaxrl_llm.rewards import Verdict
from jaxrl_llm.tasks import own_reward

TOKENIZER = types.SimpleNamespace(
    start='', chat=lambda text: f'<user>{text}<model>', encode=list)
ROWS = [{'problem': ' What is 1 + 1?\n', 'answer': '#### 2', 'level': 1},
        {'problem': 'What is 2 + 1?', 'answer': '3', 'level': None}]


@pytest.fixture(autouse=True)
def restored(monkeypatch):
  monkeypatch.setattr(sys, 'path', [*sys.path])


@pytest.fixture
def make(tmp_path):
  """Returns (code of a function f, *files of rows) -> task."""

  def call(code, *files, name='f', **options):
    (tmp_path / 'mine.py').write_text(code)
    paths = []
    for i, rows in enumerate(files or [ROWS]):
      paths.append(tmp_path / f'{"ab"[i]}.jsonl')
      paths[-1].write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return tasks.get('math', TOKENIZER, **{
        'path': tuple(map(str, paths)), 'heldout_count': 0,
        'reward': tuple(
            f'{tmp_path}/mine.py:{n}' for n in name.split(',')), **options})

  # Each test has another folder, so its mine.py is another module.
  return call


def judged(task, problems, texts):
  return rewards.verify_all(task, problems, texts, [False] * len(texts))


RECORD = '''
calls = []

def f(**kwargs):
  calls.append(kwargs)
  return [len(text) for text in kwargs['completions']]
'''


def calls(task):
  """Returns the arguments of all calls, without those that are not columns."""
  return [{k: v for k, v in call.items() if k not in own_reward.GIVEN[2:]}
          for call in raw_calls(task)]


def raw_calls(task):
  return task.rewards.functions[0]._function.__globals__['calls']


def test_columns_reach_the_function_with_their_rows(make):
  task = make(RECORD)
  first, second = task.train
  assert first.prompt.startswith('<user>What is 1 + 1?\nPlease')
  assert [p.info.answer for p in task.train] == ['2', '3']
  assert [v.reward for v in judged(
      task, [second, first, second], ['', 'a', 'bbb'])] == [0, 1, 3]
  assert calls(task) == [{
      'prompts': ['What is 2 + 1?', ' What is 1 + 1?\n', 'What is 2 + 1?'],
      'completions': ['', 'a', 'bbb'], 'answer': ['3', '#### 2', '3'],
      'level': [None, 1, None]}]
  assert task.verify(first, 'xy', True) == Verdict(2.0, 'correct')
  assert calls(task)[1]['answer'] == ['#### 2']


def test_columns_of_several_files(make, tmp_path):
  """A column that a file lacks is None there, whatever is judged."""
  task = make(RECORD, ROWS, [{'problem': 'c', 'tests': ['x', {'y': 1}]}],
              problem='problem', answer='none')
  a, b, c = task.train
  judged(task, [c, a], ['', ''])
  judged(task, [b], [''])
  assert calls(task) == [
      {'prompts': ['c', ' What is 1 + 1?\n'], 'completions': ['', ''],
       'answer': [None, '#### 2'], 'level': [None, 1],
       'tests': [['x', {'y': 1}], None]},
      {'prompts': ['What is 2 + 1?'], 'completions': [''], 'answer': ['3'],
       'level': [None], 'tests': [None]}]
  # So are those of a file that is only evaluated.
  (tmp_path / 'c.jsonl').write_text('{"problem": "d", "other": 4}')
  judged(task, [*task.load(str(tmp_path / 'c.jsonl')), a], ['', ''])
  assert calls(task)[2]['other'] == [4, None]
  assert calls(task)[2]['level'] == [None, 1]


@pytest.mark.parametrize('parameters, want', [
    ('completions', {'completions'}),
    ('level', {'level'}),
    ('completions, level', {'completions', 'level'}),
    ('*, prompts, answer', {'prompts', 'answer'}),
    ('level, absent=None', {'level', 'absent'}),
    ('level, **rest', {'level', 'rest'}),
])
def test_a_function_gets_what_it_names(make, parameters, want):
  task = make(f'calls = []\ndef f({parameters}):\n'
              '  calls.append(locals())\n  return [1]')
  assert judged(task, task.train[:1], ['a']) == [Verdict(1.0, 'correct')]
  found, = calls(task)
  assert found.keys() == want
  assert found.get('absent') is None
  assert found.get('rest', {}).keys() in (set(), {
      *own_reward.GIVEN, 'answer'})
  assert ('rest' in want) == bool(found.get('rest'))


def test_held_out_problems_have_what_a_function_needs(make, tmp_path):
  """A column of the training problems alone would fail all evaluations."""
  (tmp_path / 'c.jsonl').write_text('{"problem": "d", "answer": "1"}')
  with pytest.raises(ValueError, match="needs 'level', which is no column"):
    make('def f(level):\n  return [1]', heldout=(str(tmp_path / 'c.jsonl'),))


def test_held_out_problems_of_the_same_file_may_lack_a_column(make):
  rows = [*({'problem': f'{i}'} for i in range(19)), {'problem': 'a', 'b': 1}]
  split = make('def f(b):\n  return [1]', rows, heldout_count=4)
  assert len(split.heldout) == 4 and any(
      'b' in p.info.columns for p in split.train)


def test_a_problem_needs_no_answer(make):
  task = make(RECORD, [{'problem': 'a'}, {'problem': 'b', 'answer': [1, 2]},
                       {'problem': 'c', 'answer': ''},
                       {'problem': 'd', 'answer': 5}])
  assert [p.info.answer for p in task.train] == ['', '', '', '5']
  judged(task, task.train, ['t'] * 4)
  assert calls(task)[0]['answer'] == [None, [1, 2], '', 5]


def returns(make, value, count=3):
  """Returns the verdicts of a function that returns `value`."""
  task = make('def f(completions):\n  return value')
  task.rewards.functions[0]._function.__globals__['value'] = value
  return judged(task, task.train[:1] * count, ['abc'] * count)


class Labelled(list):
  """List whose elements have other labels than their places, as pandas's."""

  def __init__(self, values, shape=None):
    super().__init__(values)
    self.shape = shape or (len(values),)

  def __getitem__(self, label):
    return super().__getitem__(label - 7)


@pytest.mark.parametrize('value', [
    [0.5, -1, 1], (0.5, -1, True), [np.float32(0.5), np.int64(-1), np.True_],
    np.array([0.5, -1, 1]), jnp.array([0.5, -1, 1]),
    [jnp.float32(0.5), np.array(-1), jnp.array(1)],
    torch.tensor([0.5, -1, 1], requires_grad=True),
    np.array([0.5, -1, True], object), Labelled([0.5, -1, 1]),
    [fractions.Fraction(1, 2), decimal.Decimal(-1), torch.tensor(True)]])
def test_numbers(make, value):
  assert returns(make, value) == [
      Verdict(0.5, 'partial'), Verdict(-1.0, 'wrong'),
      Verdict(1.0, 'correct')]


def test_none_leaves_the_group(make):
  a, b, c = returns(make, [None, 0, 2.5])
  assert a == Verdict(0.0, 'skipped', False)
  assert b == Verdict(0.0, 'wrong') and c == Verdict(2.5, 'correct')


@pytest.mark.parametrize('value', [
    float('nan'), float('inf'), -float('inf'), np.float32('nan'), 1e39,
    10 ** 400])
def test_a_reward_that_is_not_finite_spoils_itself_alone(make, value):
  a, b, c = returns(make, [1, value, 0])
  assert (a.valid, c.valid) == (True, True)
  assert (b.reward, b.kind, b.valid) == (0.0, 'error', False)
  assert 'the reward' in b.detail


class Vector:
  """Array of one number that converts to it, as PyTorch's do."""
  shape = (1,)

  def __float__(self):
    return 1.0


@pytest.mark.parametrize('value, said', [
    ([1, 2], 'returned a list of length 2 for 3 responses: return a number'),
    ([1] * 4, 'returned a list of length 4 for 3 responses'),
    ([], 'returned a list of length 0'),
    ([1, 'good', 1], r"returned 'good' \(str\) as reward 2"),
    ([1, 2, '1'], r"returned '1' \(str\) as reward 3"),
    ([1, [1], 1], r'returned \[1\] \(list\) as reward 2'),
    (np.ones((3, 1)), r'\(ndarray\): return a list'),
    (torch.ones(3, 1), r'\(Tensor\): return a list'),
    (Labelled([0, 1, 2], shape=(3, 3)), r'\(Labelled\): return a list'),
    (np.array(['1', '2', '3']), r'\(str_\) as reward 1'),
    (map(float, '101'), r'\(map\): return a list'),
    ([1, 1j, 1], 'as reward 2'),
    ([1, Vector(), 1], r'\(Vector\) as reward 2'),
    (None, r'returned None \(NoneType\): return a list'),
    (1.0, r'returned 1.0 \(float\): return a list'),
    ('abc', r"returned 'abc' \(str\): return a list"),
    ({0: 1, 1: 1, 2: 1}, r'\(dict\): return a list'),
    ({1, 2, 3}, r'\(set\): return a list'),
    ((x for x in [1, 1, 1]), r'\(generator\): return a list'),
])
def test_a_result_of_a_wrong_form_ends_the_run(make, tmp_path, value, said):
  with pytest.raises(ValueError, match=said) as error:
    returns(make, value)
  assert str(error.value).startswith(f'task.reward={tmp_path}/mine.py:f ')
  assert '\n' not in str(error.value)


def test_a_function_that_raises_judges_none(make, tmp_path):
  task = make('def f(completions):\n  return inner()\n\ndef inner():\n'
              '  raise ValueError("no sandbox")\n')
  texts = ['a', 'b']
  verdicts = judged(task, task.train, texts)
  assert [(v.reward, v.kind, v.valid, v.detail) for v in verdicts] == [
      (0.0, 'error', False, 'ValueError: no sandbox')] * 2
  last = verdicts[0].trace.splitlines()
  assert last[-1] == 'ValueError: no sandbox' and len(last) <= 12
  assert f'{tmp_path}/mine.py", line 5, in inner' in verdicts[0].trace
  with pytest.raises(rewards.VerifierError) as error:
    rewards.check_step(verdicts, texts)
  assert str(error.value) == (
      'None of the 2 responses of the step has a reward, since '
      f'task.reward={tmp_path}/mine.py:f fails (ValueError: no sandbox): '
      f'correct {tmp_path}/mine.py, line 5.')


@pytest.mark.parametrize('value, said', [
    (None, 'returned None: return a number for each response that it can '
     'judge.'),
    (float('inf'), 'returned the reward inf: return a number from -1e+15 to '
     '1e+15, or None.'),
    (-1e20, 'returned the reward -1e+20: return a number from -1e+15 to 1e+15, '
     'or None.')])
def test_a_function_that_never_gives_a_reward(make, tmp_path, value, said):
  with pytest.raises(rewards.VerifierError) as error:
    rewards.check_step(returns(make, [value] * 3), ['a'] * 3)
  assert str(error.value) == (
      'None of the 3 responses of the step has a reward, since '
      f'task.reward={tmp_path}/mine.py:f {said}')
  rewards.check_step(returns(make, [value, value, 0]), ['a'] * 3)


def test_a_print_into_a_closed_output_is_no_fault_of_the_function(
    tmp_path, monkeypatch):
  class Closed(io.StringIO):
    def write(self, text):
      raise BrokenPipeError(32, 'Broken pipe')

  (tmp_path / 'mine.py').write_text('''
def rewarded(completions, **columns):
  print('a line')
  print('the beginning of one', end='', flush=True)
  return [1.0] * len(completions)
''')
  reward = own_reward.Reward(f'{tmp_path}/mine.py:rewarded')
  monkeypatch.setattr(sys, 'stdout', Closed())
  assert reward.call({'completions': ['a', 'b']}) == [1.0, 1.0]


CHANGES = '''
def f(prompts, completions, completion_ids, answer, extra, trainer_state):
  length = len(answer) + len(completions) + len(prompts[0])
  length += len(completion_ids[0]) + len(extra[0]["deep"]["list"])
  prompts[0].extend(completions[0])
  completions[0][0]["content"] = ""
  completions.clear()
  completion_ids[0].append(7)
  answer.pop()
  extra[0]["deep"]["list"].append(1)
  del extra[1]["deep"]
  trainer_state.global_step += 1
  return [length + trainer_state.global_step] * 2

def g(log_metric, log_extra, **given):
  return f(**given)
'''


def test_what_a_function_changes_is_its_own(make):
  rows = [{'prompt': [{'role': 'user', 'content': 'a'}], 'answer': 'b',
           'extra': {'deep': {'list': [1, 2]}}}]
  task = make(CHANGES, rows, name='f,g')
  problems, ids = task.train * 2, [[1, 2], [3]]
  for _ in range(2):
    for verdict in rewards.submit(
        task, problems, ['x', 'y'], [False] * 2, rewards.Facts(ids, 5, 9))():
      # 2 answers, 2 completions, 1 message, 2 ids, 2 elements; step 5 + 1.
      assert verdict.rewards == {'f': 15.0, 'g': 15.0}
  assert ids == [[1, 2], [3]]
  assert task.train[0].info.columns['extra'] == rows[0]['extra']


def test_what_cannot_be_copied_is_passed_as_it_is():
  class Own:
    def __deepcopy__(self, _):
      raise RuntimeError('no copy')

  lock, own = threading.Lock(), Own()
  found = own_reward._copied([lock, {'a': own, 'b': (1, [2])}])
  assert found[0] is lock and found[1]['a'] is own
  assert found[1]['b'] == (1, [2])


def test_only_columns_that_a_function_takes_are_copied(monkeypatch, tmp_path):
  (tmp_path / 'mine.py').write_text('def narrow(a):\n  return [1]\n')
  copied = []
  monkeypatch.setattr(own_reward, '_copied', copied.append)
  reward = own_reward.Reward(f'{tmp_path}/mine.py:narrow')
  reward.call({'a': 'A', 'b': 'B'})
  assert copied == ['A']


@pytest.mark.parametrize('value, want', [
    (True, 1.0), (np.array(2), 2.0), (torch.tensor(0.5), 0.5)])
def test_a_number_is_logged(make, value, want):
  task = make('def f(completions, log_metric):\n'
              '  log_metric("x", value)\n  return [1]\n')
  task.rewards.functions[0]._function.__globals__['value'] = value
  verdict, = judged(task, task.train[:1], ['t'])
  assert verdict.logged == {'x': want}


def test_what_is_no_number_is_not_logged(make):
  task = make('def f(completions, log_metric):\n'
              '  log_metric("x", "1")\n  return [1]\n')
  verdict, = judged(task, task.train[:1], ['t'])
  assert verdict.kind == 'error' and "log_metric got '1'" in verdict.detail


def test_a_function_does_not_close_the_output(make, monkeypatch):
  monkeypatch.setattr(sys, 'stdout', io.StringIO())
  task = make('import sys\n\ndef f(completions):\n  sys.stdout.close()\n'
              '  return [1]\n')
  assert judged(task, task.train[:1], ['t'])[0].valid
  assert not sys.stdout.closed


@pytest.mark.parametrize('name', own_reward.GIVEN)
def test_columns_with_the_names_of_arguments(make, name):
  rows = [*ROWS, {'problem': 'a', name: 'b'}]
  with pytest.raises(ValueError, match=f"a.jsonl, line 3: the field '{name}'.*"
                     'rename the field'):
    make(RECORD, rows)
  # The problem's own field is no column.
  task = make(RECORD, [{name: 'a', 'level': 1}], problem=name)
  judged(task, task.train, ['x'])
  assert calls(task) == [
      {'prompts': ['a'], 'completions': ['x'], 'level': [1]}]
  # Without a reward function nothing keeps such a field away.
  assert make(RECORD, [{**ROWS[0], name: 'b'}], reward=()).train


@pytest.mark.parametrize('options, match', [
    (dict(name='g'), "mine.py has no function 'g'"),
    (dict(reward=('no_such_rewards:f',)), "no module 'no_such_rewards'"),
    (dict(reward=('mine',)), "'mine' does not name a function"),
    (dict(code='def f(levl):\n  pass'),
     "needs 'levl', which is no column.*Did you mean 'level'"),
    (dict(code='def f(prompts, completions, /):\n  pass'),
     "takes prompts by its position only.*remove the '/'"),
    (dict(code='x ='), 'cannot be imported.*mine.py, line 1'),
])
def test_a_function_that_cannot_be_used(make, options, match):
  with pytest.raises(ValueError, match=match) as error:
    make(**{'code': RECORD, **options})
  assert '\n' not in str(error.value)


def test_a_function_without_a_signature(make):
  """Some functions written in C have none; they get everything."""
  task = make('f = dict', [{'problem': 'a', 'level': 1}])
  with pytest.raises(ValueError, match=r"returned \{'prompts': \['a'\]"):
    judged(task, task.train, ['x'])
