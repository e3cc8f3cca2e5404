"""Tests of the start of programs: what runs before their slow imports."""

from concurrent import futures
import contextlib
import os
import signal
import subprocess
import sys

import pytest

from jaxrl_llm import cli, train
from jaxrl_llm.base import place
from jaxrl_llm.jobs import train as loop
from jaxrl_llm.types import Stopped
from tests.helpers import devices, tiny

IMPORT = '''
import os, signal, sys, warnings
del sys.argv, sys.orig_argv  # reading them fails
state = lambda: (
    dict(os.environ), [*map(signal.getsignal, signal.valid_signals())],
    [*warnings.filters], [*sys.path], [*sys.meta_path])
before, known = state(), {*sys.modules}
import jaxrl_llm
assert state() == before
print(*{*sys.modules} - known)
'''

CHECK = '''
import sys
from jax._src import xla_bridge
from jaxrl_llm import cli, evaluate, export, sft
config = sys.argv[1:]
cli.parse(['--process_count=auto', *config], 'train')
cli.parse(['--config.sft.steps=1', *config], 'sft', check=sft.check)
evaluate.parse(['--temperature=0', *config])
export.parse(['--workdir=a', '--out=b'])
assert not xla_bridge._backends
print(*sys.modules)
'''

ADVANTAGE = '''
import jax.numpy as jnp

def centred(rewards, *, where, scale=1.):
  return scale * jnp.where(where, rewards - jnp.mean(rewards), 0.)
'''


def python(code, *argv, **env):
  """Returns the modules that a process has printed."""
  done = subprocess.run(
      [sys.executable, '-c', code, *argv], cwd=devices.ROOT, text=True,
      capture_output=True, check=False, env={
          **{k: v for k, v in os.environ.items() if k != 'JAX_PLATFORMS'},
          **env})
  assert not done.returncode and not done.stderr, done.stderr
  return {*done.stdout.split()}


def test_importing_the_package_does_nothing_else():
  """No argument is read, and the process is as before."""
  found = python(IMPORT)
  assert {x for x in found if x.startswith('jaxrl_llm')} == {'jaxrl_llm'}
  assert not found & {
      'jax', 'numpy', 'ml_collections', 'libtpu', 'transformers', 'rich'}


def test_a_config_is_checked_without_the_slow_imports(tmp_path):
  """Also with functions of the user; models are not read."""
  (tmp_path / 'own.py').write_text(ADVANTAGE)
  found = python(
      CHECK, '--config=all_four', '--config.model.hf=/none',
      f'--config.advantage={tmp_path}/own.py:centred',
      '--config.speed.rule=pass_rate', JAX_PLATFORMS='cpu')
  assert not found & {
      'transformers', 'orbax', 'torch', 'jaxrl_llm.learner.learner',
      'jaxrl_llm.learner.update', 'jaxrl_llm.models.transformer',
      'jaxrl_llm.sampling.generate', 'jaxrl_llm.checkpoint', 'jaxrl_llm.jobs'}
  assert {'jaxrl_llm.curriculum.speed', 'jaxrl_llm.prepare.methods'} <= found


@pytest.mark.parametrize('program, argv, said', [
    ('train', ['--config=none.py'], 'There is no config file none.py'),
    ('sft', ['--config=x', '--process_count=2'], '--process_id is missing'),
    ('evaluate', ['--checkpoint=first'], '--checkpoint=first is not known'),
    ('export', ['--workdir=a', '--out=b'], 'no config file a/config.json')])
def test_what_needs_no_jax_is_told_before_its_import(
    tmp_path, program, argv, said):
  done = subprocess.run(
      [sys.executable, '-X', 'importtime', '-m', f'jaxrl_llm.{program}', *argv],
      cwd=tmp_path, env={**os.environ, 'PYTHONPATH': str(devices.ROOT)},
      capture_output=True, text=True, check=False)
  names = {x.rpartition('|')[2].strip() for x in done.stderr.splitlines()}
  assert done.returncode == 2 and said in done.stderr
  assert 'jaxrl_llm.config' in names and 'jax' not in names


@pytest.mark.parametrize('program', ['train', 'evaluate'])
def test_a_missing_reward_is_told_before_the_slow_imports(tmp_path, program):
  done = subprocess.run(
      [sys.executable, '-X', 'importtime', '-m', f'jaxrl_llm.{program}',
       '--config=configs/grpo/qwen3_1p7b_math.py', '--config.task.path=x.jsonl',
       f'--config.task.reward={tmp_path}/none.py:f'], cwd=devices.ROOT,
      capture_output=True, text=True, check=False)
  said = [x for x in done.stderr.splitlines() if 'import time:' not in x]
  assert said == [f'There is no file {tmp_path}/none.py. Give the path of a '
                  'Python file.']
  assert done.returncode == 2
  names = {x.rpartition('|')[2].strip() for x in done.stderr.splitlines()}
  assert 'jaxrl_llm.tasks.own_reward' in names
  assert not names & {'transformers', 'jaxrl_llm.jobs'}


@pytest.mark.parametrize(
    'loaded', ['jaxrl_llm.config.sections', 'jax', 'jaxrl_llm.jobs'])
def test_an_interrupt_while_modules_load(tmp_path, loaded):
  with subprocess.Popen(
      [sys.executable, '-X', 'importtime', '-m', 'jaxrl_llm.train',
       f'--config={tiny.FILE}', f'--config.workdir={tmp_path}/run'],
      cwd=devices.ROOT, text=True, stdout=subprocess.PIPE,
      stderr=subprocess.PIPE) as process:
    for line in process.stderr:
      if line.rpartition('|')[2].strip() == loaded:
        break
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
  said = '\n'.join(x for x in said.splitlines() if 'import time:' not in x)
  assert not out and said.strip() == cli._INTERRUPTED
  assert process.returncode == 130 and not (tmp_path / 'run').exists()


def test_the_handler_is_gone_once_the_program_runs(tmp_path):
  """Also after a config is refused."""
  handler = lambda: signal.getsignal(signal.SIGINT)
  signal.signal(signal.SIGINT, signal.default_int_handler)
  with pytest.raises(SystemExit), cli.starting():
    assert handler() is cli._end
    cli.parse(['--config=none'], 'train')
  assert handler() is signal.default_int_handler
  with cli.running(place.Given(), tiny.load(tmp_path / 'run')):
    assert handler() is signal.default_int_handler
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  with cli.starting():  # as it was asked to ignore it
    assert handler() is signal.SIG_IGN


def test_a_program_starts_in_any_thread():
  with futures.ThreadPoolExecutor() as pool:
    assert pool.submit(lambda: contextlib.ExitStack().enter_context(
        cli.starting())).result() is None


def test_a_program_that_stops_ends_with_the_given_code(tmp_path):
  with pytest.raises(SystemExit) as end, cli.running(
      place.Given(stopped_code=75), tiny.load(tmp_path / 'run')):
    raise Stopped('It is saved.')
  assert end.value.code == 75


def test_a_config_is_loaded_once_and_a_model_is_read_later(
    monkeypatch, tmp_path, capsys):
  file, log = tmp_path / 'c.py', tmp_path / 'log'
  file.write_text(
      'from jaxrl_llm import config\n'
      'def get_config(arg=None):\n'
      f'  with open({str(log)!r}, "a") as file: file.write(".")\n'
      '  return config.base()\n')
  monkeypatch.setattr(
      loop, 'train', lambda config, name: trained.append((config.steps, name)))
  trained = []
  monkeypatch.setattr(
      sys, 'argv', ['train', f'--config={file}', '--config.steps=3'])
  train.main()
  assert trained == [(3, 'c')] and log.read_text() == '.'
  sys.argv.append(f'--config.model.hf={tmp_path}/none')
  with pytest.raises(SystemExit) as end:
    train.main()
  assert end.value.code == 2 and f'{tmp_path}/none' in capsys.readouterr().err
  assert len(trained) == 1
