"""Tests of runs on environments and tools of the user's, in their own files."""

import json
import pathlib
import random
import time

import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm import evaluate, train
from jaxrl_llm.environments import tools, worker
from jaxrl_llm.monitoring import metrics
from tests.helpers import many, tiny, tiny_hf

# Sums of two dice, of a small model: an environment with a warm start.
DICE = '''
import random, time

ALPHABET = '0123456789+-?'

def problems(split, seed):
  first = 0 if split == 'train' else 40
  return [{'n': first + i} for i in range(40 if split == 'train' else 5)]

def reset(problem, seed):
  rng = random.Random(f"{problem['n']} {seed}")
  return (rng.randint(1, 6) + rng.randint(1, 6), 3), '?'

def step(state, text):
  if text.startswith('9'):  # a mistake of the user's
    time.sleep(60)
  hidden, left = state
  if text == str(hidden) or left == 1:
    return state, None, float(text == str(hidden))
  low = text.isdigit() and int(text) < hidden
  return (hidden, left - 1), '+' if low else '-', 0.0

def demonstration(problem, seed):
  rng = random.Random(seed)
  state, _ = reset(problem, seed)
  turns, said = [], ''
  while said is not None:
    text = str(rng.choice([*range(2, 9), *range(10, 13)]))
    state, said, _ = step(state, text)
    turns.append((text, said or ''))
  return turns
'''
TOOLS = '''
def add(a: int, b: int) -> str:
  """Adds.

  Args:
    a: A number.
    b: Another.
  """
  return str(a + b)

def first(text: str) -> str:
  """Returns the first letter.

  Args:
    text: A text.
  """
  return text[:1]
'''
LIMITS = {'task.max_turns': 3, 'task.max_turn': 3, 'task.timeout': 0.5}
FIELDS = {
    'sft.steps': 60, 'sft.learning_rate': 1e-2,
    'max_response': 12, 'eval.every': 0, 'log.samples': 99,
    'log.tensorboard': False}


def loaded(name, workdir, limits=LIMITS, **fields):
  """Returns the config of a small run with an environment."""
  given = {
      name: value for name, value in config_lib.flatten(
          tiny.get_config()).items() if not name.startswith('task.')}
  fields = {'task.name': name, 'workdir': str(workdir), **limits, **FIELDS,
            **fields}
  config = config_lib.complete(given, fields, 'name')
  config_lib.validate(config)
  return config


def test_a_turn_of_a_single_sample_is_compared_with_no_other(tmp_path):
  (tmp_path / 'dice.py').write_text(DICE)
  name = f'{tmp_path}/dice.py'
  fields = dict(advantage='turns', samples_per_prompt=1)
  with pytest.raises(ValueError, match='advantage=turns nothing to compare'):
    loaded(name, tmp_path, **fields)
  loaded(name, tmp_path, **fields, **{'turns.by_turn': False})


def samples(workdir):
  return [json.loads(line) for line in (
      workdir / 'samples.jsonl').read_text().splitlines()]


def test_an_environment_of_a_file_trains_goes_on_and_is_evaluated(
    tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'dice.py').write_text(DICE)
  whole, cut = tmp_path / 'whole', tmp_path / 'cut'
  fields = {'advantage': 'turns', 'turns.discount': .9}
  train.train(loaded('dice.py', whole, steps=3, **fields))
  train.train(loaded('dice.py', cut, steps=2, **fields))
  train.train(loaded('dice.py', cut, steps=3, **fields))
  records = samples(whole)
  assert records == samples(cut)
  several = 0
  for record in records:
    turns = record['turns']
    several += len(turns) > 1
    if record['verdict'] == 'timeout':  # what hangs takes no other with it
      assert turns[-1]['text'].startswith('9')
      continue
    assert record['reward'] == sum(turn['reward'] for turn in turns)
    assert all(turn['observation'] in ('+', '-') for turn in turns[:-1])
    for turn in turns:
      assert sum(turn['token_chars']) == len(turn['text'])
      assert len(turn['token_logprobs']) == len(turn['token_chars'])
      assert max(turn['token_logprobs']) <= 0
  assert several
  found = evaluate.evaluate(loaded('dice.py', cut, steps=3, **fields), 'last')
  assert found['step'] == 3 and 0 <= found['pass@1'] <= 1
  for line in pathlib.Path(found['responses']).read_text().splitlines():
    row = json.loads(line)
    assert row['response'].startswith(row['turns'][0]['text'])
    assert row['reward'] == sum(turn['reward'] for turn in row['turns'])


def test_tools_of_a_file_train_go_on_and_are_evaluated(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'tools.py').write_text(TOOLS)
  problems = tiny_hf.word_problems(8)
  tiny_hf.make(tmp_path / 'model', problems)
  tiny_hf.write(tmp_path / 'problems.jsonl', problems)
  fields = {
      'model.hf': 'model', 'task.tools': 'tools.py:add,tools.py:first',
      'task.path': 'problems.jsonl', 'task.heldout_count': 2,
      'task.tool_timeout': 5.0, 'task.timeout': 5.0, 'sft.steps': 0,
      'max_prompt': 900, 'max_response': 24, 'task.max_turn': 9}
  for steps in 1, 2:
    config = loaded('tools', tmp_path / 'run', steps=steps, **fields)
    assert train.train(config)['steps'] == steps
  # The model has random weights, and calls nothing: here are its tools.
  env = worker.environment(f'{tools.PREFIX}tools.py:add,tools.py:first')
  for call, said in (('{"name": "add", "arguments": {"a": 2, "b": 3}}', '5'),
                     ('{"name": "first", "arguments": {"text": "owl"}}', 'o')):
    state, _ = env.reset({}, 0)
    assert env.step(state, f'<tool_call>{call}</tool_call>')[1] == said
  records = samples(tmp_path / 'run')
  assert {record['step'] for record in records} == {1, 2}
  assert all('"first"' in record['prompt'] for record in records)
  assert evaluate.evaluate(config, 'last')['step'] == 2


def test_a_task_with_turns_needs_their_limit_in_the_config(tmp_path):
  (tmp_path / 'mine.py').write_text('''
from jaxrl_llm.examples import guess

def create(tokenizer):
  return guess.create()
''')
  with pytest.raises(ValueError, match='needs an option max_turns: add it to'):
    train.train(loaded(
        f'{tmp_path}/mine.py', tmp_path / 'run', limits={}))


@pytest.mark.slow
@pytest.mark.parametrize('carried', [False, True])
@pytest.mark.parametrize('count', [1, 2])
def test_killed_at_ten_moments_while_steps_hang(tmp_path, count, carried):
  (tmp_path / 'dice.py').write_text(DICE)
  fields = {
      name.replace('.', '__'): value for name, value in {
          **LIMITS, **FIELDS, 'task.name': tmp_path / 'dice.py', 'steps': 60,
          'checkpoint.every': 3, 'seed': 1, **({
              'sampling.carry_over': True, 'sampling.wave_steps': 5}
              if carried else {})}.items()}
  whole, cut = tmp_path / 'whole', tmp_path / 'cut'
  start = lambda folder: many.start(
      folder, fields, count=count, programs=tmp_path / 'programs')
  many.finish(start(whole), whole)
  moments = random.Random(time.time_ns())
  reached = lambda: max((row['step'] for row in metrics.read(
      cut / 'run/metrics.jsonl')), default=-1)
  for _ in range(10):
    goal, processes = reached() + moments.choice([0, 2, 4, 6]), start(cut)
    while reached() < goal and all(p.poll() is None for p in processes):
      time.sleep(.01)
    time.sleep(moments.uniform(0, .5))
    for process in processes:
      process.kill()
      process.wait()
    print(f'killed after step {reached()}')
  many.finish(start(cut), cut)
  ours, theirs = ([{**row, 'turns/waited': None} for row in many.rows(folder)]
                  for folder in (cut, whole))
  assert ours == theirs
  found = samples(whole / 'run')
  assert found == samples(cut / 'run')
  assert sum(record['verdict'] == 'timeout' for record in found) > 1
