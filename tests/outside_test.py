"""Tests of what users bring from outside of the package, as they use it."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import jaxrl_llm
from jaxrl_llm import config as config_lib
from jaxrl_llm import evaluate, train
from jaxrl_llm.base import own_code
from jaxrl_llm.monitoring import metrics
from tests.helpers import devices, tiny, tiny_hf

SMALL = {
    'steps': 2, 'prompts_per_step': 4, 'samples_per_prompt': 4,
    'max_prompt': 150, 'max_response': 8,
    'sampling.slots': 8, 'eval.every': 0, 'eval.samples': 2, 'eval.k': (1,),
    'task.template': 'question', 'task.heldout_count': 3,
    'log.samples': 4, 'log.display': False, 'log.tensorboard': False}

# Even responses are right, long ones are left out; `hint` is a column.
REWARDS = '''
from beside import is_even

def fn(prompts, completions, hint, **columns):
  assert len(prompts) == len(completions) == len(hint) == len(
      columns['answer'])
  assert all(p.endswith('?') and h == p[:3] for p, h in zip(prompts, hint))
  return [None if len(text) > 30 else float(is_even(text))
          for text in completions]
'''
BESIDE = 'def is_even(text): return len(text) % 2 == 0'


# What TRL passes to rewards of messages, and what they may log.
OF_MESSAGES = '''
from beside import is_even

def even(prompts, completions, completion_ids, hint, meta, log_extra,
         **columns):
  assert all(p[1]['content'].endswith('?') for p in prompts)
  assert all(p[1]['content'][:3] == h for p, h in zip(prompts, hint))
  assert meta == [{'of': [h]} for h in hint] and 'answer' in columns
  assert columns['trainer_state'].max_steps in (2, 3)
  texts = [c[0]['content'] for c in completions]
  log_extra('tokens', list(map(len, completion_ids)))
  return [None if len(text) > 30 else float(is_even(text)) for text in texts]

async def short(completions, log_metric):
  log_metric('calls', 2)
  return [None if len(c[0]['content']) > 30 else -1.0 for c in completions]
'''


def expected(text):
  """Returns verdict and validity as REWARDS gives them."""
  return 'skipped' if len(text) > 30 else (
      'correct' if len(text) % 2 == 0 else 'wrong')


@pytest.fixture(scope='module')
def rows():
  return [{**row, 'hint': row['problem'][:3]}
          for row in tiny_hf.word_problems(12)]


@pytest.fixture(scope='module')
def model(tmp_path_factory, rows):
  folder = tmp_path_factory.mktemp('model') / 'qwen3'
  tiny_hf.make(folder, rows)
  return folder


def judged_as_expected(workdir):
  """Checks every response in samples.jsonl; returns the verdicts."""
  records = [json.loads(line) for line in (
      workdir / 'samples.jsonl').read_text().splitlines()]
  for record in records:
    assert record['verdict'] == expected(record['response'])
    assert record['reward'] == (record['verdict'] == 'correct')
    assert record['reference'].isdigit()
  return {record['verdict'] for record in records}


@pytest.mark.long
def test_the_installed_package_takes_a_reward_from_any_folder(
    tmp_path, model, rows):
  """The package as a wheel holds it; the user's files in another folder."""
  site, user = tmp_path / 'site', tmp_path / 'user'
  subprocess.run(
      [sys.executable, 'setup.py', '-q', 'build', '-b', str(tmp_path / 'b'),
       '--build-lib', str(site)], cwd=devices.ROOT, check=True,
      capture_output=True)
  user.mkdir()
  (user / 'my_rewards.py').write_text(REWARDS)
  (user / 'beside.py').write_text(BESIDE)
  tiny_hf.write(user / 'train.jsonl', rows)
  (user / 'mine.py').write_text(
      'from jaxrl_llm import config\n\n'
      'def get_config():\n'
      '  c = config.base()\n'
      f'  c.model.hf = {str(model)!r}\n'
      '  c.task.update(name="math", path=("train.jsonl",))\n'
      '  return c\n')
  fields = {**SMALL, 'task.reward': 'my_rewards.py:fn', 'eval.k': 1,
            'workdir': 'run', 'compilation_cache': devices.kept(tmp_path)}
  environment = {
      **os.environ, 'PYTHONPATH': str(site), 'JAX_PLATFORMS': 'cpu'}
  del environment['JAX_COMPILATION_CACHE_DIR']
  done = subprocess.run(
      [sys.executable, '-P', '-m', 'jaxrl_llm.train', '--config=mine.py', *(
          f'--config.{name}={value}' for name, value in fields.items())],
      cwd=user, env=environment, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  assert 'correct' in judged_as_expected(user / 'run')
  saved = config_lib.load(str(user / 'run' / 'config.json'))
  assert saved.task.reward == (f'{user}/my_rewards.py:fn',)


def test_run_takes_problems_and_functions(
    tmp_path, monkeypatch, model, rows):
  """Train, again for a third step, and evaluate from the saved config.

  The problems and the functions are as TRL's users have them.
  """
  monkeypatch.setattr(sys, 'path', [*sys.path])
  (tmp_path / 'own_fn.py').write_text(OF_MESSAGES)
  (tmp_path / 'beside.py').write_text(BESIDE)
  monkeypatch.syspath_prepend(str(tmp_path))
  import own_fn
  monkeypatch.chdir(tmp_path)
  rows = [{
      'prompt': [dict(role='system', content='Be brief.'),
                 dict(role='user', content=row['problem'])],
      'answer': row['answer'], 'hint': row['hint'],
      'meta': {'of': [row['hint']]}} for row in rows]
  config = config_lib.base()
  config.task.update(name='math', heldout=('not_there.jsonl',))
  config.model.hf = str(model)

  def run(steps, problems=rows):
    return jaxrl_llm.run(
        config, reward_fn=[own_fn.even, own_fn.short], problems=problems,
        name='mine', overrides={
            **SMALL, 'task.template': 'auto', 'task.reward_weights': (1., .25),
            'advantage': 'gdpo', 'steps': steps})

  assert run(2)['steps'] == 2
  workdir = tmp_path / 'runs' / 'mine'
  assert run(3)['steps'] == 3  # goes on
  for record in map(json.loads, (
      workdir / 'samples.jsonl').read_text().splitlines()):
    verdict = expected(record['response'])
    even = None if verdict == 'skipped' else float(verdict == 'correct')
    assert record['rewards'] == dict(
        even=even, short=None if even is None else -1.0)
    assert record['reward'] == (0 if even is None else even - .25)
    assert 1 <= record['extra']['tokens'] <= SMALL['max_response']
    assert record['prompt'].startswith(
        '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n')
  found = metrics.read(workdir / 'metrics.jsonl')
  assert [row['step'] for row in found] == [0, 1, 2, 3]
  last_row = found[-1]
  for row in found[1:]:
    assert row['logged/calls'] == 2 and row['rewards/short'] == -1
    np.testing.assert_allclose(
        row['reward/mean'], row['rewards/even'] - .25, atol=1e-6)
  saved = config_lib.load(str(workdir / 'config.json'))
  assert saved.task.reward == tuple(
      f'{tmp_path}/own_fn.py:{name}' for name in ('even', 'short'))
  path, = saved.task.path
  assert path.startswith(str(workdir / 'problems-'))
  # Other problems are refused, and those of the run stay.
  before = pathlib.Path(path).read_text()
  with pytest.raises(ValueError, match='task.path: .* -> .*another workdir'):
    run(4, rows[:8])
  assert pathlib.Path(path).read_text() == before
  monkeypatch.chdir('/')  # paths do not depend on the folder
  result = evaluate.evaluate(saved, 'last')
  assert result['step'] == 3
  records = [*map(json.loads, pathlib.Path(
      result['responses']).read_text().splitlines())]
  first = records[0]
  # The mean over the problems of the mean over their responses that count.
  found = [[r['rewards']['even'] for r in records if r['problem_id'] == ident
            and r['rewards']['even'] is not None]
           for ident in {r['problem_id'] for r in records}]
  np.testing.assert_allclose(
      result['rewards/even'], np.mean([*map(np.mean, filter(None, found))]))
  assert result['rewards/short'] == -1
  # Training evaluated the same responses at its end.
  for name in ('even', 'short'):
    np.testing.assert_allclose(
        last_row['eval/rewards/' + name], result['rewards/' + name])
  assert {*first['rewards']} == {'even', 'short'} and first['extra']['tokens']
  assert config.workdir is None  # the config given is left as it was


def test_run_in_a_script_that_is_imported_is_refused(tmp_path):
  """Else an evaluation, which imports the reward function, would train."""
  script = tmp_path / 'script.py'
  script.write_text(
      'import jaxrl_llm\n\ndef fn(**_): return []\n\n'
      'jaxrl_llm.run("missing.py", reward_fn=fn)\n')
  with pytest.raises(ValueError, match=f'run is called while {script} is impo'):
    own_code.function(f'{script}:fn')


@pytest.mark.parametrize('given, parts', [
    (dict(reward_fn=lambda **_: []), ['task.name=countdown', 'task.name=math']),
    (dict(reward_fn=[lambda **_: [], lambda **_: []]),
     ['reward_fn has two functions of the name python:']),
    (dict(problems=[{'problem': {1}}], overrides={'task': 'math'}),
     ['Problem 0', 'set']),
    (dict(problems=[{'problem': '\ud800'}], overrides={'task': 'math'}),
     ['Problem 0', 'surrogates']),
    (dict(overrides={'sede': 1}), ['sede', 'seed']),
    (dict(overrides={'steps': 'many'}), ['steps=many'])])
def test_a_mistake_in_run_is_one_sentence(given, parts, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError) as error:
    jaxrl_llm.run(config_lib.base(), **given)
  assert all(part in str(error.value) for part in parts)
  assert '\n' not in str(error.value)


TASK = '''
import dataclasses

from jaxrl_llm.rewards import Verdict
from jaxrl_llm.tasks import Problem
from jaxrl_llm.base.tokenizer import CharTokenizer


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of the task.

  Attributes:
    letter: the letter to write.
  """
  letter: str = 'a'


class Letters:

  def __init__(self, options):
    self.options, self.tokenizer = options, CharTokenizer('abc')
    problems = [Problem(i, 'abc'[i % 3] * (1 + i // 3), 'x') for i in range(12)]
    self.train, self.heldout = problems[:9], problems[9:]

  def verify(self, problem, text, truncated):
    return Verdict(text.count(self.options.letter) / 10, 'counted')


def create(tokenizer, options: Options):
  return Letters(options)
'''


def test_a_task_of_a_file_trains_goes_on_and_is_evaluated(
    tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'path', [*sys.path])
  (tmp_path / 'letters.py').write_text(TASK)
  monkeypatch.chdir(tmp_path)
  small = tiny.get_config()
  given = {
      name: value for name, value in config_lib.flatten(small).items()
      if not name.startswith('task.')}
  config = config_lib.complete(given, {
      'task': 'letters.py', 'task.letter': 'b', 'workdir': 'run', 'steps': 2,
      'eval.every': 0}, 'name')
  config_lib.validate(config)
  train.train(config)
  monkeypatch.chdir('/')
  workdir = tmp_path / 'run'
  saved = config_lib.load(str(workdir / 'config.json'), {
      'workdir': str(workdir), 'steps': 3})
  assert saved.task.to_dict() == dict(
      name=f'{tmp_path}/letters.py', letter='b')
  assert train.train(saved)['steps'] == 3
  rows = metrics.read(pathlib.Path(workdir, 'metrics.jsonl'))
  assert [row['step'] for row in rows] == [0, 1, 2, 3]
  records = [json.loads(line) for line in (
      workdir / 'samples.jsonl').read_text().splitlines()]
  for record in records:
    assert record['reward'] == record['response'].count('b') / 10
  result = evaluate.evaluate(saved, 'last')
  assert result['step'] == 3
  assert np.isfinite(rows[-1]['reward/mean'])
