"""Tests of the ends of a run: a wrong one says why, and has exit code 1."""

import dataclasses
import json
import logging
import pathlib
import resource
import shutil
import subprocess
import sys
import time
import types

import pytest

from jaxrl_llm import checkpoint, export, tasks, train
from jaxrl_llm import config as config_lib
from jaxrl_llm.jobs import export as export_job
from jaxrl_llm.jobs import train as loop
from jaxrl_llm.monitoring import metrics, progress, summary
from jaxrl_llm.prepare import build
from jaxrl_llm.rewards import Verdict
from tests.helpers import tiny

# A failed save's other writers have nothing to say; see `Checkpointer`.
pytestmark = pytest.mark.filterwarnings(
    'error::pytest.PytestUnraisableExceptionWarning')


def program(monkeypatch, capsys, config):
  """Runs the program in this process; returns its exit code and output."""
  monkeypatch.setattr(
      train.config_lib, 'parse', lambda *_, **__: (config, 'name'))
  monkeypatch.setattr(sys, 'argv', ['train'])
  code = 0
  try:
    train.main()
  except SystemExit as end:
    code = end.code
  out, said = capsys.readouterr()
  if isinstance(code, str):  # which the interpreter would print
    said, code = code, 1
  return code, out, said


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

    monkeypatch.setattr(loop, 'take_step', step)

  def lift(self):
    resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)


def whole(folder):
  root = pathlib.Path(folder, 'checkpoints')
  return [step for step in checkpoint.steps(root)
          if checkpoint.fault(root / str(step)) is None]


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


def test_a_disk_that_stays_full(
    monkeypatch, caplog, capsys, tmp_path, parts, reuse):
  """The run ends with its table and an error; given room, it goes on."""
  reuse(parts)
  config = tiny.load(
      tmp_path, steps=4, checkpoint__every=1, log__display=True)
  disk = FullDisk(monkeypatch, tmp_path, first=2, last=None)
  try:
    code, out, said = program(monkeypatch, capsys, config)
  finally:
    disk.lift()
  assert code == 1 and said.count('\n') == 0
  for part in ('could not be written', str(tmp_path), 'of step 2', 'make room'):
    assert part in said
  assert whole(tmp_path)[-1] == 2
  # The last line names what is there: 4 KB have room for the summary.
  assert 'held-out problems' in out
  assert out.splitlines()[-1] == f'{tmp_path}: summary.json, samples.jsonl'
  assert (tmp_path / 'summary.json').exists()
  assert not [*tmp_path.glob('curves*'), *tmp_path.glob('*.part')]
  assert 'curves.png could not be written' in caplog.text
  # asyncio says what Orbax's futures failed of, when they are collected.
  assert all(r.levelno == logging.WARNING for r in caplog.records
             if r.name != 'asyncio')
  monkeypatch.undo()
  reuse(parts)
  train.train(config)
  assert whole(tmp_path)[-1] == 4
  rows = metrics.read(tmp_path / 'metrics.jsonl')
  assert [row['step'] for row in rows] == list(range(5))
  assert (tmp_path / 'curves.png').stat().st_size > 1 << 12


def test_a_worker_that_cannot_be_started_again_costs_no_step(
    monkeypatch, tmp_path, parts, reuse):
  reuse(parts)
  take_step = train.take_step

  def step(parts, state, *rest):
    if state.step == 3:
      raise ChildProcessError('no more processes')
    return take_step(parts, state, *rest)

  monkeypatch.setattr(loop, 'take_step', step)
  with pytest.raises(ChildProcessError, match='no more processes'):
    train.train(tiny.load(
        tmp_path, steps=9, eval__every=0, checkpoint__every=0))
  assert whole(tmp_path)[-1] == 3


def test_a_picture_that_cannot_be_drawn_costs_only_itself(
    monkeypatch, caplog, tmp_path):
  def fail(*_):
    raise ValueError("Key backend: 'x' is not a valid value")

  monkeypatch.setattr(summary.plots, 'curves', fail)
  folder = types.SimpleNamespace(local=tmp_path, path=tmp_path)
  line, fault = summary.end(folder, {'steps': 1}, 'title', [1])
  assert line.endswith(': summary.json, samples.jsonl, checkpoints/')
  assert 'could not be written' in fault
  assert 'curves.png could not be written' in caplog.text
  assert "(ValueError: Key backend: 'x' is not" in caplog.text


class Nasty:
  """Verifier that returns or raises, in turn, what nobody expects."""

  def __init__(self):
    self.calls = 0

  def __str__(self):
    raise SystemExit

  __repr__ = __str__

  def __call__(self, problem, text, truncated):
    self.calls += 1
    results = [
        lambda: sys.exit(), lambda: Verdict(1.0, '\ud800', detail='\udfff'),
        lambda: Verdict(1.0, ['list'], detail=self, answer={text}),
        lambda: Verdict(0.0, self, answer='\udc00'), lambda: None,
        lambda: Verdict(0.0, 'a\nb\x1b[2J'), lambda: 1 / 0]
    return results[self.calls % len(results)]()


class Torn:
  """Tokeniser whose texts are not valid Unicode."""

  def __init__(self, made):
    self._made = made

  def __getattr__(self, name):
    return getattr(self._made, name)

  def decode(self, ids):
    return self._made.decode(ids) + '\ud800\x1b'


def test_what_a_verifier_returns_is_written_everywhere(
    parts, reuse, tmp_path, capsys):
  problems = {
      name: [dataclasses.replace(p, kind=f'{p.kind}\udbff', answer='\ud800')
             for p in getattr(parts.task, name)]
      for name in ('train', 'heldout')}
  watched = tiny.watch(
      parts, Nasty(), tokenizer=Torn(parts.task.tokenizer), **problems)
  reuse(watched.parts._replace(kinds=build.by_kind(problems['train'])))
  train.train(tiny.load(tmp_path, steps=2, log__display=True))
  capsys.readouterr().out.encode()
  rows = [json.loads(line) for line in (
      tmp_path / 'metrics.jsonl').read_bytes().splitlines()]
  kinds = {name for row in rows for name in row if name.startswith('verdict/')}
  assert kinds == {f'verdict/{kind}' for kind in (
      'error', '\ufffd', "['list']", '<Nasty>', 'a b [2J')}
  samples = [json.loads(line) for line in (
      tmp_path / 'samples.jsonl').read_bytes().splitlines()]
  assert {'two\ufffd'} == {row['kind'] for row in samples}
  assert {'\ufffd'} == {row['reference'] for row in samples}
  assert all(row['response'].endswith('\ufffd\x1b') for row in samples)
  assert {'SystemExit: ', '\ufffd', '<Nasty>'} < {
      row['detail'] for row in samples}
  shown = progress.sample_lines(samples).split('\n')
  assert len(shown) == 2 and all(line.isprintable() for line in shown)
  assert '\ufffd' in shown[1]


def test_a_problem_may_have_any_kind():
  problems = [tasks.Problem(i, 'x', kind) for i, kind in enumerate(
      ['a', ['b'], 5, '\ud800', 'a'])]
  assert {name: index.tolist() for name, index in build.by_kind(
      problems).items()} == {'a': [0, 4], "['b']": [1], '5': [2], '\ufffd': [3]}


def test_a_disk_that_is_full_at_the_start(monkeypatch, capsys, tmp_path, parts,
                                          reuse):
  reuse(parts)
  config = tiny.load(tmp_path / 'run', steps=1)
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
  try:
    code, _, said = program(monkeypatch, capsys, config)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert code == 1 and said == (
      f'The disk is full at {tmp_path}/run/choices.json: make room, and run '
      'the same command again.')
  assert not [*(tmp_path / 'run').glob('config*')]


@pytest.mark.parametrize('end, code_said', [
    (SystemExit, 'None'), (SystemExit(0), '0'), (SystemExit('bye'), "'bye'")])
def test_no_other_code_ends_a_run_silently(
    monkeypatch, capsys, tmp_path, parts, reuse, end, code_said):
  def demonstration(index, *, seed):
    raise end

  reuse(tiny.watch(parts, demonstration=demonstration).parts)
  code, _, said = program(monkeypatch, capsys, tiny.load(
      tmp_path, steps=1, sft__steps=1))
  assert code == 1 and '\n' not in said
  assert said.startswith(
      f'sys.exit({code_said}) was called in {__file__}, line ')


def remove(folder, place):
  shutil.rmtree(folder)


def empty(folder, place):
  for path in folder.iterdir():
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def move(folder, place):
  folder.rename(place)


def replace(folder, place):
  """Leaves a run of somebody else in the folder."""
  shutil.move(folder, place)
  (folder / 'checkpoints' / '9').mkdir(parents=True)
  (folder / 'lock').write_text('')


def forbid(folder, place):
  """Leaves a file, so that no folder can be made."""
  shutil.rmtree(folder)
  folder.write_text('')
  pathlib.Path(f'{folder}-saved').write_text('')


@pytest.fixture(scope='module')
def unbroken(parts, tmp_path_factory):
  """Metrics of the last step of a run that keeps its folder."""
  folder = tmp_path_factory.mktemp('whole') / 'run'
  config = tiny.load(folder, steps=4, eval__every=0)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(build, 'parts', lambda _: tiny.changed(
        tiny.watch(parts, tiny.by_length).parts, config=config))
    train.train(config)
  return metrics.read(folder / 'metrics.jsonl')[-1]


@pytest.mark.parametrize('lose, step, saved', [
    (remove, 0, ''), (remove, 2, ''), (empty, 1, ''), (move, 1, ''),
    (replace, 2, '-saved'), (forbid, 1, None)])
def test_a_workdir_that_goes_during_a_run(
    monkeypatch, capsys, tmp_path, parts, reuse, unbroken, lose, step, saved):
  """Its state is saved, and goes on to what an unbroken run ends with."""
  watched = tiny.watch(parts, tiny.by_length)
  reuse(watched.parts)
  take_step = train.take_step

  def step_of(parts, state, *rest):
    if state.step == step:
      while [*(tmp_path / 'run').glob('checkpoints/*tmp*')]:
        time.sleep(0.01)  # It is being written.
      lose(tmp_path / 'run', tmp_path / 'elsewhere')
    return take_step(parts, state, *rest)

  with monkeypatch.context() as patch:
    patch.setattr(loop, 'take_step', step_of)
    code, _, said = program(
        patch, capsys, tiny.load(tmp_path / 'run', steps=4, eval__every=0))
  assert code == 1 and '\n' not in said
  assert f'workdir={tmp_path}/run was removed or moved during the run' in said
  if saved is None:
    assert f'state of step {step + 1} could not be saved' in said
    return
  place = f'{tmp_path}/run{saved}'
  assert f'the state of step {step + 1} is saved' in said
  assert said.endswith(f'--config.workdir={place}.')
  assert checkpoint.steps(f'{place}/checkpoints') == [step + 1]
  assert pathlib.Path(place, 'choices.json').exists()
  again = config_lib.load(f'{place}/config.json')
  assert again.workdir == place
  train.train(again)
  last = metrics.read(f'{place}/metrics.jsonl')[-1]
  assert last['step'] == 4
  assert last['update/loss'] == unbroken['update/loss']
  if lose is replace:
    assert [*(tmp_path / 'run' / 'checkpoints').iterdir()] == [
        tmp_path / 'run' / 'checkpoints' / '9']


def test_a_removed_folder_of_checkpoints_is_made_again(
    monkeypatch, caplog, tmp_path, parts, reuse):
  reuse(parts)
  take_step = train.take_step

  def step(parts, state, *rest):
    if state.step == 2:
      while not whole(tmp_path):
        time.sleep(0.01)
      shutil.rmtree(tmp_path / 'checkpoints')
    return take_step(parts, state, *rest)

  monkeypatch.setattr(loop, 'take_step', step)
  train.train(tiny.load(tmp_path, steps=3, checkpoint__every=10))
  assert whole(tmp_path) == [3] and not caplog.records


def test_an_export_on_a_full_disk_leaves_nothing(
    monkeypatch, capsys, tmp_path, parts):
  _, _, params = tiny.begin(parts)
  model = parts.programs.model
  monkeypatch.setattr(export_job, 'parameters', lambda *_: (params, model, 3))
  config = tiny.load(tmp_path / 'run')
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'config.json').write_text(config_lib.to_json(config))
  for place in ('out', 'new/folder/out'):
    monkeypatch.setattr(sys, 'argv', [
        'export', f'--workdir={tmp_path}/run', f'--out={tmp_path / place}'])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
    try:
      with pytest.raises(SystemExit) as end:
        export.main()
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = end.value.code
    assert 'cannot be written' in said and 'make room' in said
    assert '\n' not in said
    assert [path.name for path in tmp_path.iterdir()] == ['run']
  export.main()
  assert (tmp_path / place / 'config.json').exists()
  capsys.readouterr()


@pytest.mark.parametrize('broken', [
    BrokenPipeError(32, 'Broken pipe'), OSError(28, 'No space left on device')])
def test_a_run_outlives_its_output(broken, caplog, monkeypatch):
  class Full:
    encoding = 'utf8'

    def write(self, text):
      raise broken

    flush = write

  file = Full()
  monkeypatch.setattr(file, 'fileno', lambda: 99, raising=False)
  display = progress.Display('', console=progress.Console(file=file))
  monkeypatch.setattr(progress.Console, 'on_broken_pipe', rich_exit)
  display.note('a')
  display.note('b')
  warning, = [r.getMessage() for r in caplog.records]
  assert 'Nothing more can be printed' in warning


def rich_exit(self):
  """Ends the program as rich does, without a change to stdout."""
  raise SystemExit(1)


def test_signals_after_the_run_change_nothing():
  """A program that has nothing left to stop ends as it would."""
  done = subprocess.run(
      [sys.executable, '-c', (
          'import os, signal\n'
          'from jaxrl_llm.monitoring import exits\n'
          'with exits.program("Interrupted."):\n'
          '  with exits.stoppable(5):\n'
          '    pass\n'
          '  os.kill(os.getpid(), signal.SIGTERM)\n'
          'os.kill(os.getpid(), signal.SIGTERM)\n'
          'print("done")')], capture_output=True, text=True)
  assert (done.returncode, done.stdout) == (0, 'done\n'), done.stderr
