"""Tests of the start of a program, before its slow imports."""

import os
import signal
import subprocess
import sys

import pytest

from jaxrl_llm import start
from jaxrl_llm.config import command_line
from jaxrl_llm.monitoring import exits
from tests.helpers import devices, tiny


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
  assert not names & {'transformers', 'jaxrl_llm.train'}


@pytest.mark.parametrize('loaded', ['jaxrl_llm.config.field', 'jax', 'optax'])
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
  assert not out and said.strip() == start._INTERRUPTED
  assert process.returncode == 130 and not (tmp_path / 'run').exists()


def test_a_script_loads_its_config_first(monkeypatch, capsys):
  argv = ['/a/bin/jaxrl-evaluate', '--config=contdown']
  monkeypatch.setattr(sys, 'argv', argv)
  monkeypatch.setattr(sys, 'orig_argv', ['python', *argv])
  with pytest.raises(SystemExit):
    start.begin()
  assert 'Did you mean countdown?' in capsys.readouterr().err


def test_the_handler_is_gone_once_the_program_runs(monkeypatch):
  monkeypatch.setattr(sys, 'argv', ['-m', '--config=x'])
  monkeypatch.setattr(
      sys, 'orig_argv', ['python', '-X', 'dev', '-m', 'jaxrl_llm.export'])
  signal.signal(signal.SIGINT, signal.default_int_handler)
  start.begin()
  assert signal.getsignal(signal.SIGINT) is start._end
  with exits.program('x'):
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  start.begin()  # as it was asked to ignore it
  assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize('argv, orig, name', [
    (['-m'], ['python', '-m', 'jaxrl_llm.train', 'x'], 'train'),
    (['-m'], ['python', '-m', 'jaxrl_llm.rewards.worker'], None),
    (['-m'], ['python', '-m', 'pytest', '-m', 'jaxrl_llm.train'], None),
    (['train.py'], ['python', '-m', 'jaxrl_llm.train'], None),
    (['/a/bin/jaxrl-train', 'x'],
     ['/a/bin/python', '/a/bin/jaxrl-train', 'x'], 'train'),
    (['/a/bin/jaxrl-train'], ['python', '/a/bin/jaxrl-train', 'x'], None),
    (['/a/bin/jaxrl-train'], ['python', '-c', 'x'], None),  # spawned by one
    (['jaxrl-sweep'], ['python', 'jaxrl-sweep'], None),
    (['train'], ['python', 'train'], None),
    ([''], ['python'], None), ([], ['python'], None)])
def test_what_is_a_program(monkeypatch, argv, orig, name):
  monkeypatch.setattr(sys, 'argv', argv)
  monkeypatch.setattr(sys, 'orig_argv', orig)
  assert start.program() == name


def test_a_config_is_loaded_once(monkeypatch, tmp_path):
  file = tmp_path / 'c.py'
  file.write_text('from jaxrl_llm import config\nimport os\n'
                  'def get_config(arg=None):\n'
                  '  os.write(WRITE, b".")\n  return config.base()\n'.replace(
                      'WRITE', f'os.open({str(tmp_path / "log")!r}, '
                      'os.O_WRONLY | os.O_APPEND | os.O_CREAT)'))
  argv = [f'--config={file}', '--config.steps=3']
  command_line.begin(['--process_count=2', '--files=x', *argv, '-x'])
  assert command_line.parse(argv)[0].steps == 3
  assert (tmp_path / 'log').read_text() == '.'
  assert command_line.parse(argv)[0].steps == 3  # another call, another config
  assert (tmp_path / 'log').read_text() == '..'
  command_line.begin([f'--config={file}', '--help'])
  command_line.begin(['--config.steps=3'])
  assert (tmp_path / 'log').read_text() == '..'
  with pytest.raises(SystemExit):
    command_line.begin([f'--config={file}', '--config.stps=3'])
  os.remove(tmp_path / 'log')
