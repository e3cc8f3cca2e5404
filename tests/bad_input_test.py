"""Tests of wrong input: one sentence, the right exit code, no lost data."""

import logging
import pathlib
import resource
import subprocess
import sys
import time

import pytest

from jaxrl_llm import checkpoint, train, workdir
from jaxrl_llm.monitoring import metrics
from tests import devices, tiny


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
    (['learning_rate=1'], ['did you mean optimizer.learning_rate?']),
    (['samples_per_prompt=1', 'learner.microbatch=4'],
     ['samples_per_prompt=1', 'advantage=grpo', 'advantage=reinforce']),
    (['samples_per_prompt=1', 'learner.microbatch=4', 'advantage=rloo'],
     ['advantage=rloo']),
    (['learner.microbatch=5'], ['learner.microbatch=5', '16 responses']),
    (['learner.updates=5'], ['learner.updates=5', '16 responses']),
    (['eval.k=8'], ['eval.k=8', 'eval.samples=4']),
    (['task.train=0'], ['needs problems', 'train=(0,)']),
    (['task.heldout=0'], ['needs problems', 'heldout=(0,)']),
    (['model.kv_heads=3'], ['kv_heads=3', 'heads=2']),
    (['learner.buckets=19'], ['learner.buckets has 19']),
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
      '--config.max_response=4', '--config.warm_start.steps=1')
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
  assert whole(tmp_path) == [0, 1]


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
      (2, 'warm_start.stps is not a field', '--config.warm_start.stps=1'),
      (1, 'cannot be written to', f'--config.workdir={tmp_path}/file/run')]
  for code, part, arg in runs:
    done = subprocess.run(
        [sys.executable, '-m', 'jaxrl_llm.train', f'--config={tiny.FILE}', arg],
        cwd=devices.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert part in done.stderr and 'Traceback' not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not done.stdout


class FullDisk:
  """Limits files to 4 KB between two steps of a run.

  The checkpoint of the first step is still written.
  """

  def __init__(self, monkeypatch, folder, first, last):
    self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    take_step = train.take_step

    def step(parts, state, *rest):
      if state.step == first:
        while first not in whole(folder):  # it is written in the background
          time.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, self.limits[1]))
      if state.step == last:
        self.lift()
      return take_step(parts, state, *rest)

    monkeypatch.setattr(train, 'take_step', step)

  def lift(self):
    resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)


def whole(folder):
  root = pathlib.Path(folder, 'checkpoints')
  return [step for step in checkpoint.steps(root)
          if checkpoint.fault(root / str(step)) is None]


# What TensorStore's other writers say of a save that failed.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_a_full_disk_costs_checkpoints_and_not_the_run(
    monkeypatch, caplog, tmp_path, parts, reuse):
  watched = tiny.watch(parts, tiny.by_length)
  reuse(watched.parts)
  config = tiny.load(tmp_path, steps=8, checkpoint__every=1)
  disk = FullDisk(monkeypatch, tmp_path, first=3, last=6)
  try:
    result = train.train(config)
  finally:
    disk.lift()
  assert result['steps'] == 8
  lost = [r.getMessage() for r in caplog.records
          if 'could not be written' in r.getMessage()]
  assert len(lost) >= 2
  for step, line in zip((4, 5), lost):
    assert f'checkpoint of step {step} could' in line and '\n' not in line
    assert 'goes on' in line and 'newest checkpoint is of step 3' in line
  assert whole(tmp_path) == checkpoint.steps(tmp_path / 'checkpoints')
  assert whole(tmp_path)[-1] == 8
  # Steps on the full disk are missing in the metrics, and none is torn.
  rows = metrics.read(tmp_path / 'metrics.jsonl')
  assert {row['step'] for row in rows} >= {0, 1, 2, 3, 7, 8}


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_a_disk_that_stays_full(monkeypatch, caplog, tmp_path, parts, reuse):
  """The run ends with its result; given room, the same command goes on."""
  reuse(parts)
  config = tiny.load(tmp_path, steps=4, checkpoint__every=1)
  disk = FullDisk(monkeypatch, tmp_path, first=2, last=None)
  try:
    result = train.train(config)
  finally:
    disk.lift()
  assert result['steps'] == 4
  assert whole(tmp_path)[-1] == 2
  assert 'summary and curves' in caplog.text
  assert all(r.levelno == logging.WARNING for r in caplog.records)
  monkeypatch.undo()
  reuse(parts)
  train.train(config)
  assert whole(tmp_path)[-1] == 4
  rows = metrics.read(tmp_path / 'metrics.jsonl')
  assert [row['step'] for row in rows] == list(range(5))
  assert (tmp_path / 'curves.png').stat().st_size > 1 << 12
