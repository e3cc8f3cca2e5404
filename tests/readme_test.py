"""Tests that the README's commands work as printed, for a small model."""

import re
import shlex
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm import config, evaluate, export, train
from jaxrl_llm.host import choices
from tests.helpers import devices, tiny_hf

PROGRAMS = {'train': train, 'evaluate': evaluate, 'export': export}
# What a user changes for a few problems and one processor.
SMALL = {
    'steps': 1, 'prompts_per_step': 4, 'samples_per_prompt': 4,
    'max_prompt': 150, 'max_response': 8, 'sampling.chunk': 8,
    'log.display': False}


def commands(section):
  """Returns the programs of a section's first block, with arguments."""
  text = (devices.ROOT / 'README.md').read_text().split(f'## {section}\n')[1]
  block = re.search(r'```\n(.*?)```', text, re.DOTALL)[1]
  lines = block.replace('\\\n', ' ').splitlines()
  for python, m, module, *arguments in map(shlex.split, lines):
    assert (python, m) == ('python', '-m')
    yield module.removeprefix('jaxrl_llm.'), arguments


@pytest.mark.long
def test_your_own_model_your_own_problems(tmp_path, monkeypatch, capsys):
  rows = tiny_hf.word_problems(12)
  found = list(commands('Your own model, your own problems'))
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


def test_your_own_advantage(tmp_path, monkeypatch):
  text = (devices.ROOT / 'README.md').read_text()
  example, = re.findall(r'```python\n(# mine\.py\n.*?)```', text, re.DOTALL)
  (tmp_path / 'mine.py').write_text(example)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  named = dict(re.findall(r'`--config\.(advantage)=(\S+)`', text))
  assert '`--config.sharper.power`' in text
  c = config.load(
      str(devices.ROOT / 'configs/countdown.py'), {**named, 'sharper.power': 3})
  config.validate(c)
  values, _ = choices.advantage(c)(
      jnp.array([[1.0, 0.0, 0.0, 0.0], [1.0, jnp.nan, 0.0, 1.0]]),
      jnp.array([[True] * 4, [True, False, True, False]]), jnp.uint32(0))
  np.testing.assert_allclose(values, [
      [0.75 ** 3, *[-0.25 ** 3] * 3], [0.125, 0, -0.125, 0]], rtol=1e-6)
