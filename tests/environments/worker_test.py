"""Tests of environments in worker processes, and of the task made of one."""

import json

import numpy as np
import pytest

from jaxrl_llm import environments, rewards, tasks
from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.environments import gymnasium, worker
from jaxrl_llm.environments.turns import Turns

COUNTER = '''
import os, time

def problems(split, seed):
  return [{'n': i + 10 * (split == 'heldout')} for i in range(4)]

def reset(problem, seed):
  return [problem['n'], seed], f'{problem["n"]}:'

def step(state, text):
  if text == 'hang':
    time.sleep(60)
  if text == 'die':
    os._exit(1)
  if text == 'raise':
    raise KeyError('no')
  if text == 'wrong':
    return 1
  if text == 'long':
    return state, 200_000 * 'x', 0.0
  if text == 'half':
    return state, 'a \\ud83d b', 0.0
  if text == 'random':
    return state, str(os.urandom(4)), 0.0
  n, seed = state
  n += int(text)
  return [n, seed], None if n >= 100 else f'{n}.{seed}', n / 100
'''


@pytest.fixture(scope='module')
def file(tmp_path_factory):
  path = tmp_path_factory.mktemp('env') / 'counter.py'
  path.write_text(COUNTER)
  return str(path)


PROBLEM = tasks.Problem(7, '', '', info={'n': 1}, text='1:')


def item(file, texts, observations, seed=3):
  return dict(
      name=file, key='k', problem={'n': 1}, prompt='1:', seed=seed, texts=texts,
      observations=observations)


def written(path, rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


def test_a_state_that_is_kept_is_the_replayed_one(file):
  texts = ['2', '30', '4', '70']
  said = ['3.3', '33.3', '37.3']
  for n in range(1, 5):  # the state of the turn before is there
    kept = worker.step(item(file, texts[:n], said[:n - 1]))
    worker._kept.clear()
    assert worker.step(item(file, texts[:n], said[:n - 1])) == kept
    assert kept['observation'] == [*said, None][n - 1]
  assert kept['reward'] == 1.07
  # A state that is kept is of other texts than these.
  assert worker.step(item(file, ['2'], []))['observation'] == '3.3'
  assert worker.step(item(file, ['5', '1'], ['6.3']))['observation'] == '7.3'
  # Another trajectory of the same problem has a state of its own.
  assert worker.step(item(file, ['2'], [], seed=4))['observation'] == '3.4'


@pytest.mark.parametrize('text, said', [
    ('long', 100_000 * 'x'), ('half', 'a \ufffd b')])
def test_an_observation_is_the_same_when_it_is_made_again(file, text, said):
  assert worker.step(item(file, [text], []))['observation'] == said
  for clear in (lambda: None, worker._kept.clear):
    clear()
    found = worker.step(item(file, [text, '1'], [said]))
    assert found['kind'] == 'turn' and found['observation'] == '2.3'


def test_a_replay_that_differs_is_told(file):
  worker._kept.clear()
  found = worker.step(item(file, ['2', '1'], ['9.3']))
  assert found['kind'] == 'differs' and 'turn 1 of problem k' in found['detail']
  found = worker.step({**item(file, ['2'], []), 'prompt': '2:'})
  assert found['kind'] == 'differs' and "'1:'" in found['detail']
  assert 'by seed goes into the state' in found['detail']
  turns = Turns(
      file, environments.Limits(4, None, 9), markup=False, timeout=5, workers=1)
  try:
    first = turns.submit(PROBLEM, 3, ['random'], [])()
    with pytest.raises(rewards.VerifierError, match='must depend on problem'):
      turns.submit(PROBLEM, 5, ['random', '1'], [first.observation])()
  finally:
    turns.close()


def test_an_environment_that_hangs_or_dies_fails_alone(file):
  turns = Turns(
      file, environments.Limits(4, None, 9), markup=False, timeout=.5,
      workers=2)
  try:
    waits = [turns.submit(PROBLEM, 3, [text], []) for text in (
        'hang', 'die', 'raise', 'wrong', '5')]
    replies = [wait() for wait in waits]
  finally:
    turns.close()
  assert [reply.kind for reply in replies] == [
      'timeout', 'error', 'error', 'error', 'turn']
  assert replies[-1][:2] == ('6.3', .06)
  assert 'counter.py, line' in replies[2].detail
  assert 'return the state, the observation' in replies[3].detail


def test_a_file_with_reset_and_step_is_a_task(file, tmp_path):
  task = tasks.get(file, CharTokenizer('0123456789:.'), markup='none')
  assert [p.prompt for p in task.train] == ['0:', '1:', '2:', '3:']
  assert [p.info for p in task.heldout] == [{'n': 10 + i} for i in range(4)]
  rows = written(tmp_path / 'rows.jsonl', [{'n': i} for i in range(6)])
  task = tasks.get(
      file, CharTokenizer('0123456789:.'), markup='none', path=(rows,),
      heldout_count=2)
  assert len(task.train) == 4 and len(task.heldout) == 2
  known = sorted(p.info['n'] for p in (*task.train, *task.heldout))
  assert known == [*range(6)]


def test_problems_of_an_environment_count_once(file, tmp_path, caplog):
  """They differ by any column, and are not all held out."""
  make = lambda rows, **options: tasks.get(
      file, CharTokenizer('0123456789:.'), markup='none', path=(written(
          tmp_path / 'rows.jsonl', rows),), **options)
  rows = [{'n': 1, 'seed': seed} for seed in range(5)]
  task = make([*rows, {'seed': 3, 'n': 1}], heldout_count=2)
  assert sorted(p.info['seed'] for p in (*task.train, *task.heldout)) == [
      *range(5)]
  assert '1 of 6 problems, which are repeated' in caplog.text
  with pytest.raises(ValueError, match='held out: lower task.heldout_count=5'):
    make(rows, heldout_count=5)
  same = tmp_path / 'same.py'
  same.write_text(COUNTER.replace('def problems(split, seed):', (
      'def problems(split, seed):\n  split = "train"')))
  with pytest.raises(ValueError, match='All problems of .*same.py are held'):
    tasks.get(str(same), CharTokenizer('0123456789:.'), markup='none')


def test_what_a_reset_changes_is_its_own(tmp_path):
  path = tmp_path / 'pops.py'
  path.write_text(COUNTER + """
_reset = reset

def reset(problem, seed):
  return _reset({'n': problem.pop('n')}, seed)
""")
  task = tasks.get(str(path), CharTokenizer('0123456789:.'), markup='none')
  assert [p.info for p in task.train] == [{'n': n} for n in range(4)]


@pytest.mark.parametrize('body, said', [
    ('return None', 'an iterable'), ('yield {"n": 1}; yield 1 / 0', 'line'),
    ('return 1 / 0', 'line'), ('return ["a"]', 'no dictionary'),
    ('return [{"n": {1}}]', 'no dictionary')])
def test_problems_of_a_file_that_fail_name_it(tmp_path, body, said):
  path = tmp_path / 'bad.py'
  path.write_text(COUNTER + f'\ndef problems(split, seed):\n  {body}\n')
  with pytest.raises(ValueError, match=f'bad.py.*{said}') as error:
    tasks.get(str(path), CharTokenizer('0123456789:.'))
  assert '\n' not in str(error.value)


def test_a_small_model_has_the_alphabet_and_demonstrations_of_the_file(
    file, tmp_path):
  with pytest.raises(ValueError, match="needs a tokeniser: .*ALPHABET = '...'"):
    tasks.get(file)
  path = tmp_path / 'own.py'
  path.write_text(COUNTER + """
ALPHABET = '0123456789:.'
MADE = [('2', '3.3'), ('97', '')]

def demonstration(problem, seed):
  return MADE if problem['n'] < 12 else 'none'
""")
  task = tasks.get(str(path))
  assert task.tokenizer.encode('0:') == [2, 12]
  made = [task.demonstration(i, seed=0) for i in range(20)]
  assert made == [task.demonstration(i, seed=0) for i in range(20)]
  assert {problem.id for problem, _ in made} == {p.id for p in task.train}
  assert all(turns == [('2', '3.3'), ('97', '')] for _, turns in made)
  task.train = task.heldout  # of 10 to 13
  with pytest.raises(ValueError, match="demonstration .* returned 'none': ret"):
    for index in range(20):
      task.demonstration(index, seed=0)
  assert not hasattr(tasks.get(file, CharTokenizer('0123456789:.')),
                     'demonstration')


def test_held_out_files_and_bad_rows(file, tmp_path):
  files = []
  for name in ('a', 'b'):
    files.append(tmp_path / f'{name}.jsonl')
    files[-1].write_text(json.dumps({'n': ord(name)}) + '\n')
  tokenizer = CharTokenizer('0123456789:.')
  task = tasks.get(
      file, tokenizer, markup='none', heldout=tuple(map(str, files)))
  # The environment's own held-out problems are left out.
  assert [(p.info['n'], p.source) for p in task.heldout] == [
      (97, 'a'), (98, 'b')]
  assert len(task.train) == 4
  with pytest.raises(ValueError, match='no dictionary of texts'):
    task._problem({'n': {1, 2}})
  turns = Turns(file, environments.Limits(4, None, 2), markup=False, timeout=5)
  assert turns.append(tokenizer, '1234', 1) == tokenizer.encode('12')
  with pytest.raises(ValueError, match='cannot read an observation of .*coun'):
    turns.append(tokenizer, 'é', 1)


@pytest.mark.parametrize('reward, number', [
    ('np.float32(.5)', .5), ('np.int64(1)', 1), ('np.bool_(True)', 1),
    ('True', 1), ('np.array(2.0)', 2), ('fractions.Fraction(1, 4)', .25),
    ("'1'", None), ('None', None), ('np.ones(1)', None), ('np.nan', None),
    ('np.array(np.inf)', None)])
def test_rewards_are_numbers_of_any_kind(tmp_path, reward, number):
  path = tmp_path / 'kinds.py'
  path.write_text(
      'import fractions\nimport numpy as np\n'
      'def reset(problem, seed):\n  return 0, "1:"\n'
      f'def step(state, text):\n  return state, None, {reward}\n')
  if number is None:
    with pytest.raises(ValueError, match='and the reward, a number'):
      worker.step(item(str(path), ['a'], []))
  else:
    found = worker.step(item(str(path), ['a'], []))
    assert found['reward'] == number and type(found['reward']) is float


def test_async_functions_of_an_environment_are_awaited(tmp_path):
  path = tmp_path / 'late.py'
  path.write_text("""
import asyncio

def problems(split, seed):
  return [{'n': len(split)}]

async def reset(problem, seed):
  await asyncio.sleep(0)
  return asyncio.get_running_loop(), f'{problem["n"]}:'

async def step(state, text):
  if text == 'raise':
    raise KeyError('no')
  return state, None, float(state is asyncio.get_running_loop())
""")
  task = tasks.get(str(path), CharTokenizer('0123456789:.'), markup='none')
  assert [p.prompt for p in task.train] == ['5:']
  found = worker.step({**item(str(path), ['a'], []), 'problem': {'n': 1}})
  assert found == {'kind': 'turn', 'observation': None, 'reward': 1.0}
  with pytest.raises(ValueError, match='step of .*KeyError.*late.py, line 13'):
    worker.step({**item(str(path), ['raise'], []), 'problem': {'n': 1}})


def test_an_async_environment_of_gymnasiums_api():
  class Env:
    async def reset(self, *, seed):
      return seed, {}

    async def step(self, text):
      return text, np.float32(2), np.bool_(text == 'end'), False, {}

  reset, step = gymnasium.functions(lambda problem: Env())
  state, prompt = reset({}, 4)
  assert prompt == '4' and step(state, 'a')[1:] == ('a', 2)
  assert step(state, 'end')[1:] == (None, 2)


def test_an_environment_of_gymnasiums_api():
  class Env:
    def reset(self, *, seed):
      self.left = seed % 3 + 1
      return 'go', {}

    def step(self, text):
      self.left -= 1
      return self.left, len(text), self.left == 0, text == 'stop', {}

  reset, step = gymnasium.functions(lambda problem: Env())
  state, prompt = reset({}, 4)
  assert prompt == 'go'
  state, said, reward = step(state, 'abc')
  assert (said, reward) == ('1', 3.0)
  assert step(state, '')[1] is None
  assert step(reset({}, 5)[0], 'stop')[1:] == (None, 4.0)
