"""Tests of wrong input: one sentence, the right exit code, no lost data."""

import subprocess
import sys

import pytest

from jaxrl_llm import checkpoint, train
from jaxrl_llm.prepare import build
from jaxrl_llm.storage import workdir
from tests.helpers import devices, tiny


def program(monkeypatch, capsys, *argv):
  """Runs the program in this process; returns its exit code and output."""
  monkeypatch.setattr(sys, 'argv', ['train', f'--config={tiny.FILE}', *argv])
  with pytest.raises(SystemExit) as end:
    train.main()
  said, code = capsys.readouterr().err, end.value.code
  if isinstance(code, str):  # which the interpreter would print
    said, code = said + code, 1
  assert said and '\n' not in said.strip()
  return code, said


@pytest.mark.parametrize('args, words', [
    (['steps=many'], ['steps=many', '(int)']),
    (['learning_rate=1'], ['use optimizer.learning_rate']),
    (['samples_per_prompt=1'],
     ['samples_per_prompt=1', 'advantage=grpo', 'advantage=reinforce']),
    (['samples_per_prompt=1', 'advantage=rloo'],
     ['advantage=rloo']),
    (['advantage=maxrl', 'overlong.mode=penalty', 'overlong.window=2'],
     ['overlong.mode=penalty', 'advantage=maxrl', 'overlong.mode=mask']),
    (['learner.tokens_per_microbatch=0'],
     ['learner.tokens_per_microbatch=0', 'must lie in']),
    (['learner.updates=5'], ['learner.updates=5', '16 responses']),
    (['eval.k=8'], ['eval.k=8', 'eval.samples=4']),
    (['task.train=0'], ['needs problems', 'train=(0,)']),
    (['task.heldout=0'], ['needs problems', 'heldout=(0,)']),
    (['model.kv_heads=3'], ['kv_heads=3', 'heads=2']),
    (['sampling.buckets=9'], ['sampling.buckets has 9']),
])
def test_a_config_that_does_not_fit_itself(
    monkeypatch, capsys, tmp_path, args, words):
  code, said = program(
      monkeypatch, capsys, f'--config.workdir={tmp_path}/run',
      *(f'--config.{arg}' for arg in args))
  assert code == 2
  for word in words:
    assert word in said
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('args, words', [
    (['max_prompt=5'], ['max_prompt=5', 'raise config.max_prompt']),
    (['task.train=100000'], ["'two' has too few", 'train=100000']),
    (['mesh.tensor=2'], ['mesh.tensor=2', '1 devices']),
    (['mesh.data=4'], ['mesh.data=4', 'there are 1']),
    (['model.vocab_size=10'], ['model.vocab_size=10', 'tokeniser']),
    (['log.wandb=x'], ['log.wandb=x', 'pip install']),
])
def test_a_config_that_does_not_fit_the_task_or_machine(
    monkeypatch, capsys, tmp_path, args, words):
  monkeypatch.setitem(sys.modules, 'wandb', None)
  code, said = program(
      monkeypatch, capsys, f'--config.workdir={tmp_path}/run',
      *(f'--config.{arg}' for arg in args))
  assert code == 1
  for word in words:
    assert word in said


def test_a_response_too_short_for_a_demonstration(
    monkeypatch, capsys, tmp_path, parts, reuse):
  reuse(parts)
  code, said = program(
      monkeypatch, capsys, f'--config.workdir={tmp_path}',
      '--config.max_response=4', '--config.sft.steps=1')
  assert code == 1
  assert 'max_response=4' in said and 'raise config.max_response' in said


@pytest.mark.parametrize('place', ['file', 'file/inside', '/dev/null/run'])
def test_a_workdir_that_cannot_be_written(
    monkeypatch, capsys, tmp_path, place):
  (tmp_path / 'file').write_text('in the way')
  code, said = program(
      monkeypatch, capsys, f'--config.workdir={tmp_path / place}')
  assert code == 1
  assert f'workdir={tmp_path / place} cannot be written to' in said
  assert (tmp_path / 'file').read_text() == 'in the way'


def test_two_runs_in_one_workdir(monkeypatch, capsys, tmp_path, parts, reuse):
  with workdir.held(tmp_path):
    code, said = program(monkeypatch, capsys, f'--config.workdir={tmp_path}')
  assert code == 1
  assert f'Another run is at work in workdir={tmp_path}' in said
  reuse(parts)
  train.train(tiny.load(tmp_path, steps=1))  # free again
  assert checkpoint.steps(tmp_path / 'checkpoints') == [0, 1]


def contents(folder):
  return {path: path.read_bytes() for path in folder.rglob('*')
          if path.is_file()}


def test_a_workdir_with_the_checkpoint_of_another_config(
    monkeypatch, capsys, tmp_path, parts, reuse):
  reuse(parts)
  train.train(tiny.load(tmp_path, steps=1))
  before = contents(tmp_path)
  code, said = program(
      monkeypatch, capsys, f'--config.workdir={tmp_path}', '--config.seed=4',
      '--config.loss.clip_high=.3', '--config.steps=2')
  assert code == 1
  for part in ('another config', 'seed: 0 -> 4', 'loss.clip_high: 0.2 -> 0.3',
               'choose another workdir'):
    assert part in said
  assert 'steps' not in said.replace('checkpoints', '')  # may be raised
  assert contents(tmp_path) == before


def test_mistakes_end_a_real_process_without_a_traceback(tmp_path):
  (tmp_path / 'file').write_text('')
  runs = [
      (2, 'sft.stps is not a field', '--config.sft.stps=1'),
      (1, 'cannot be written to', f'--config.workdir={tmp_path}/file/run')]
  for code, part, arg in runs:
    done = subprocess.run(
        [sys.executable, '-m', 'jaxrl_llm.train', f'--config={tiny.FILE}', arg],
        cwd=devices.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert part in done.stderr and 'Traceback' not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not done.stdout


def test_a_warm_up_that_never_ends_is_warned_of(caplog, tmp_path):
  for fields, warned in (
      ({'optimizer__warmup_steps': 5}, True),
      ({'optimizer__warmup_steps': 4}, False),
      ({'optimizer__warmup_steps': 5, 'steps': 0}, False),
      ({'optimizer__warmup_steps': 5, 'learner__epochs': 2}, False),
      ({'optimizer__warmup_steps': 4, 'optimizer__decay_steps': 3,
        'optimizer__schedule': 'linear'}, True)):
    caplog.clear()
    build.parts(tiny.load(tmp_path, **fields))
    assert ('never reaches its peak' in caplog.text) == warned, fields
  caplog.clear()  # An evaluation has no learning rate.
  build.parts(
      tiny.load(tmp_path, optimizer__warmup_steps=5), training=False)
  assert not caplog.text
