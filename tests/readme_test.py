"""Tests that blocks and settings of the README and of docs/ work as printed.

For a small model where they train. docs_test parses the blocks.
"""

import re
import runpy
import shlex
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_llm
from jaxrl_llm import config, evaluate, export, train
from jaxrl_llm.base import tokenizer
from jaxrl_llm.prepare import methods
from tests.helpers import blocks, devices, tiny_hf

PROGRAMS = {'train': train, 'evaluate': evaluate, 'export': export}
# What a user changes for a few problems and one processor.
SMALL = {
    'steps': 1, 'prompts_per_step': 4, 'samples_per_prompt': 4,
    'max_prompt': 150, 'max_response': 8, 'sampling.chunk': 8,
    'log.display': False}


OWN = 'docs/your_own.md'


def commands():
  """Returns the programs of the block of commands that runs, with arguments."""
  block, = blocks.every(mark='run', language='sh')
  assert block.page == OWN
  for python, m, module, *arguments in map(shlex.split, blocks.lines(block)):
    assert (python, m) == ('python', '-m')
    yield module.removeprefix('jaxrl_llm.'), arguments


@pytest.mark.long
def test_your_own_model_your_own_problems(tmp_path, monkeypatch, capsys):
  rows = tiny_hf.word_problems(12)
  found = list(commands())
  assert [name for name, _ in found] == ['train', 'evaluate', 'export']
  named = dict(a.partition('=')[::2] for a in found[0][1])
  (tmp_path / 'configs').symlink_to(devices.ROOT / 'configs')
  tiny_hf.make(tmp_path / named['--config.model.hf'], rows)
  for number, name in enumerate(('train', 'test', 'aime')):
    tiny_hf.write(tmp_path / f'{name}.jsonl', rows[number::3])
  monkeypatch.chdir(tmp_path)
  capsys.readouterr()
  for name, arguments in found:
    if name == 'train':
      arguments += [f'--config.{k}={v}' for k, v in SMALL.items()]
    monkeypatch.setattr(sys, 'argv', [name, *arguments])
    PROGRAMS[name].main()
  said = capsys.readouterr()
  run = tmp_path / named['--config.workdir']
  table = (run / 'evaluation.md').read_text()
  assert '| problems | mean@16 | pass@1 | pass@8 |' in table
  assert '| test.jsonl | 4 |' in table and '| all | 8 |' in table
  assert (tmp_path / 'mine' / 'model.safetensors').exists()
  assert 'mine: the best checkpoint of runs/mine, step ' in said.out
  assert not said.err


@pytest.mark.slow
def test_your_own_reward(tmp_path, monkeypatch):
  """The README's script, with a small model and one step."""
  block, = blocks.every(mark='slow')
  (tmp_path / 'script.py').write_text(block.code)
  (tmp_path / 'configs').symlink_to(devices.ROOT / 'configs')
  model = tiny_hf.make(tmp_path / 'model', tiny_hf.word_problems(3))
  run, summaries = jaxrl_llm.run, []
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(
      jaxrl_llm, 'run', lambda *args, overrides, **given: summaries.append(run(
          *args, **given, overrides={
              **overrides, **SMALL, 'prompts_per_step': 2,
              'model.hf': str(model), 'workdir': 'runs/mine'})))
  runpy.run_path('script.py', run_name='__main__')
  assert summaries[0]['steps'] == 1


@pytest.mark.parametrize(
    'block', blocks.every(mark='run', language='python'))
def test_python_blocks_run(block, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  exec(compile(block.code, block.page, 'exec'), {'__name__': '__main__'})


# What else a setting on a page may need.
CONTEXTS = (
    {}, {'task.name': 'math'}, {'task.name': 'code'}, {'task.name': 'arc'},
    {'task.name': 'jaxrl_llm.examples.arc_mini'}, {'off_policy': 'jackpot'},
    {'actor.model.preset': 'tiny'}, {'curriculum': 'speed'})
FOREIGN = 'docs/coming_from_trl.md'  # has the names of other libraries
SETTING = re.compile(r'(?:--config\.)?([a-z][\w.]*)=(\S+)')


def works(settings):
  """Returns whether a config can have these values."""
  for context in CONTEXTS:
    try:
      config.load(str(devices.ROOT / 'configs/countdown.py'),
                  {**context, **settings})
    except ValueError:
      continue
    return True
  return False


def test_settings_on_pages_are_fields():
  known = set(re.findall(
      r'^\| `([\w.]+)`', blocks.hooks().fields(), re.MULTILINE))
  sections = {name.partition('.')[0] for name in known if '.' in name}
  seen = 0
  for page in sorted({*blocks.PAGES} - {FOREIGN}):
    text = (devices.ROOT / page).read_text()
    text = re.sub(r'^ *```.*?^ *```', '', text, flags=re.DOTALL | re.MULTILINE)
    for quoted in re.findall(r'`([^`]+)`', text):
      words = quoted.split()
      found = [SETTING.fullmatch(word) for word in words]
      if re.fullmatch(r'[a-z_]+(\.[a-z_0-9]+)+', quoted) and (
          quoted.partition('.')[0] in sections) and not quoted.endswith('.py'):
        assert quoted in known or quoted in sections, f'{page}: {quoted}'
        seen += 1
      elif all(found) and not re.search(r'FILE|NAME|mine\.py|make', quoted):
        assert works(dict(x.groups() for x in found)), f'{page}: {quoted}'
        seen += 1
  assert seen > 80


def test_your_own_objective_and_correction(tmp_path, monkeypatch):
  """They train, and the run has the objective's metric."""
  example, = (block.code for block in blocks.every(page=OWN)
              if block.code.startswith('# losses.py'))
  (tmp_path / 'losses.py').write_text(example)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  sizes = dict(prompts_per_step=4, samples_per_prompt=4, max_prompt=1,
               max_response=4, width=32, layers=1, heads=2, kv_heads=1,
               head_dim=16, mlp_width=32, compilation_cache=None)
  sampler = jaxrl_llm.Sampler(
      'tiny', tokenizer.CharTokenizer('0123456789'), **sizes)
  learner = jaxrl_llm.Learner(
      sampler, objective='losses.py:soft', width=.01, learning_rate=1e-3,
      importance='losses.py:gate', importance_width=.2, updates=2)
  samples = sampler.sample(['1', '2', '3', '4'])
  found = learner.step(samples.batch(np.arange(16) - 7.5))
  assert 0 < found['soft/faded'] < 1 and found['update/importance'] == 1
  assert found['update/ratio_max'] > 1.01


def test_your_own_advantage(tmp_path, monkeypatch):
  text = (devices.ROOT / OWN).read_text()
  example, = (block.code for block in blocks.every(page=OWN)
              if block.code.startswith('# mine.py'))
  (tmp_path / 'mine.py').write_text(example)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  named = dict(re.findall(r'`--config\.(advantage)=(\S+)`', text))
  assert '`--config.sharper.power`' in text
  c = config.load(
      str(devices.ROOT / 'configs/countdown.py'), {**named, 'sharper.power': 3})
  config.validate(c)
  values, _ = methods.advantage(c)(
      jnp.array([[1.0, 0.0, 0.0, 0.0], [1.0, jnp.nan, 0.0, 1.0]]),
      jnp.array([[True] * 4, [True, False, True, False]]), jnp.uint32(0))
  np.testing.assert_allclose(values, [
      [0.75 ** 3, *[-0.25 ** 3] * 3], [0.125, 0, -0.125, 0]], rtol=1e-6)
