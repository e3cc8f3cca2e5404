"""Tests of runs in a bucket, against a server on this machine."""

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

from jaxrl_llm import checkpoint, sft, train
from jaxrl_llm.checkpoint import files
from jaxrl_llm.jobs import train as loop
from jaxrl_llm.monitoring import metrics
from jaxrl_llm.prepare import sft_data
from jaxrl_llm.storage import bucket, paths, workdir
from jaxrl_llm.tasks import problem_files
from tests.helpers import devices, gcs, tiny

# They start runs and a bucket.
pytestmark = [pytest.mark.processes, gcs.needs_server]


@pytest.fixture(scope='module', autouse=True)
def env():
  with gcs.server('bucket') as variables, pytest.MonkeyPatch.context() as patch:
    for name, value in variables.items():
      patch.setenv(name, value)
    paths.files.cache_clear()
    paths.files().clear_instance_cache()
    yield variables


def fields(folder, **more):
  """A run of four steps, of which two are trained on."""
  return tiny.load(
      steps=4, workdir=str(folder), checkpoint__every=2, eval__every=0, **more)


def state_of(folder):
  """Returns the arrays of the newest checkpoint."""
  root = paths.place(folder) / 'checkpoints'
  last = files.steps(root)[-1]
  import orbax.checkpoint as ocp
  return last, ocp.PyTreeCheckpointer().restore(root / str(last) / 'state')


def test_a_run_goes_on_to_the_bit(tmp_path, monkeypatch):
  """Cut off after its first checkpoint, whose files the bucket has."""
  train.train(fields(tmp_path / 'whole'))
  folder, take, taken = 'gs://bucket/run', train.take_step, []

  def cut_off(*args):
    taken.append(1)
    if len(taken) == 4:
      raise RuntimeError('cut off')
    return take(*args)

  with monkeypatch.context() as patch:
    patch.setattr(loop, 'take_step', cut_off)
    with pytest.raises(RuntimeError, match='cut off'):
      train.train(fields(folder))
  assert [row['step'] for row in metrics.read(f'{folder}/metrics.jsonl')] == [
      0, 1, 2, 3]
  train.train(fields(folder))
  assert [row['step'] for row in metrics.read(f'{folder}/metrics.jsonl')] == [
      0, 1, 2, 3, 4]
  (step, found), (_, want) = state_of(folder), state_of(tmp_path / 'whole')
  assert step == 4
  jax.tree.map(np.testing.assert_array_equal, found, want)
  there = paths.sizes(folder)
  assert {'config.json', 'samples.jsonl', 'summary.json', 'curves.png'} <= {
      *there}
  assert any(name.startswith('tensorboard/') for name in there)
  assert not any('probe' in name or name == 'lock' for name in there)


def test_supervised_fine_tuning_goes_on(tmp_path, monkeypatch):
  """Its folder in the run's has all metrics, and the summary at the end."""
  rows = tmp_path / 'rows.jsonl'
  rows.write_text('{"text": "1+2=3"}\n{"text": "2+2=4"}\n')
  folder, take = 'gs://bucket/tuned', sft_data.Data.batch
  config = fields(
      folder, sft__path=(str(rows),), sft__steps=4, sft__batch=2,
      sft__eval_every=2)
  taken = []

  def cut_off(*args):
    taken.append(1)
    if len(taken) == 4:
      raise RuntimeError('cut off')
    return take(*args)

  with monkeypatch.context() as patch:
    patch.setattr(sft_data.Data, 'batch', cut_off)
    with pytest.raises(RuntimeError, match='cut off'):
      sft.fine_tune(config)
  sft.fine_tune(config)
  assert [row['step'] for row in metrics.read(
      f'{folder}/sft/metrics.jsonl')] == [1, 2, 3, 4]
  assert {'config.json', 'summary.json', 'report.html'} <= {
      *paths.sizes(f'{folder}/sft')}


def test_damaged_checkpoints_are_passed_over(caplog):
  """One without its list, as of a killed run, and one with a file cut short."""
  root = paths.place('gs://bucket/damaged')
  state = {'a': np.arange(100_000.0)}
  saver = checkpoint.Checkpointer(root, {}, keep=4)
  for step in range(4):
    saver.save(step, state, {'step': step})
  saver.close()
  (root / '3' / files.FILES).unlink()
  large = max(paths.sizes(root / '2').items(), key=lambda item: item[1])[0]
  paths.write_whole(root / '2' / large, b'')
  saver = checkpoint.Checkpointer(root, {}, keep=4)
  found = saver.restore(state)
  assert found.step == 1 and found.host == {'step': 1}
  np.testing.assert_array_equal(found.state['a'], state['a'])
  assert f'{large} has 0 bytes' in caplog.text
  assert paths.sizes(root / 'torn-2')
  saver.save(2, state, {'step': 2})
  saver.close()
  assert checkpoint.whole_steps(root) == [0, 1, 2]
  assert not paths.sizes(root / 'torn-2') and not paths.sizes(root / '3')


@pytest.mark.parametrize('whole', [False, True])
def test_killed_while_a_checkpoint_is_replaced(whole):
  root = paths.place(f'gs://bucket/replaced-{whole}')
  state = {'a': np.arange(100.0)}
  for step in range(2):
    saver = checkpoint.Checkpointer(root, {})
    saver.save(0, state, {'time': step}, again=True)
    saver.close()
  assert checkpoint.restore(root, state).host == {'time': 1}
  files.set_aside(root, 0, files.REPLACED)
  saver = checkpoint.Checkpointer(root, {})
  if whole:
    saver.save(0, state, {'time': 2})
  saver.close()
  assert checkpoint.restore(root, state).host == {'time': 1}
  assert {name.partition('/')[0] for name in paths.sizes(root)} == {'0'}


def test_one_run_at_a_time(caplog, monkeypatch):
  folder = 'gs://bucket/held'
  monkeypatch.setattr(bucket, '_BEAT', 0.2)
  with pytest.raises(
      OSError, match=f'{folder} was removed, or taken over') as failed, (
          workdir.held(folder)) as held:
    (held.local / 'metrics.jsonl').write_text('{"step": 0}\n')
    gone = held.watch()
    with pytest.raises(ValueError, match=(
        f'Another run is at work in workdir={folder}, on '
        f'{socket.gethostname()}: wait')):
      bucket.Lock(folder)
    assert not gone()
    last = time.monotonic() + 10
    while not gone() and time.monotonic() < last:
      # Again, since the run may be in the middle of writing it anew.
      with contextlib.suppress(FileNotFoundError):
        paths.files().rm_file(f'{folder}/lock')
      time.sleep(0.05)
    assert gone()
  # Not in the bucket, where another run may be at work.
  assert str(held.local) in str(failed.value) and not paths.sizes(folder)
  assert (held.local / 'metrics.jsonl').read_text() == '{"step": 0}\n'


@pytest.fixture(scope='module')
def ended():
  """Returns the lock of a process that has ended."""
  process = subprocess.run(['sh', '-c', 'echo $$'], capture_output=True)
  return {**bucket._namespace(), 'process': int(process.stdout), 'id': 'it'}


@pytest.mark.parametrize('host', [None, 'another-host'])
def test_the_lock_of_a_killed_run(host, ended, monkeypatch, caplog):
  """Of this host: at once. Of another: when nobody has written it for long."""
  folder = f'gs://bucket/killed-{host}'
  paths.write_whole(f'{folder}/lock', json.dumps(
      {**ended, **({'host': host} if host else {})}))
  monkeypatch.setattr(bucket, '_STALE', 3.0 if host else 1000.0)
  began = time.monotonic()
  lock = bucket.Lock(folder)
  assert (time.monotonic() - began > 3) == bool(host)
  assert ('another-host: waiting' in caplog.text) == bool(host)
  lock.release()
  assert not paths.sizes(folder)


@pytest.mark.parametrize('other', [
    {'host': 'another-host'}, {'boot': 'other'}, {'space': 'pid:[1]'},
    {'process': os.getpid()}])
def test_a_process_that_cannot_be_seen_has_not_ended(ended, other):
  """In a container, the host may have the same name, but other processes."""
  assert bucket._ended(ended)
  assert not bucket._ended({**ended, **other})
  assert not bucket._ended({'id': None})


def test_a_lock_that_is_not_ours_ends_with_time(monkeypatch, caplog):
  """Such as the empty file of a run on disk that was copied to a bucket."""
  folder = 'gs://bucket/foreign'
  paths.write_whole(f'{folder}/lock', '')
  monkeypatch.setattr(bucket, '_STALE', 0.5)
  lock = bucket.Lock(folder)
  assert 'a run on another host: waiting' in caplog.text
  for content in (b'', b'[1]', b'{"host": "a"}', b'\xff'):
    paths.write_whole(f'{folder}/lock', content)
    assert lock._read()[0] == {'id': None}
  lock.beat()
  assert lock.lost


def test_a_lock_whose_answer_was_lost_is_taken_at_once(monkeypatch, caplog):
  """The client asks for it again, and finds the object of its first try."""
  folder, files, tried = 'gs://bucket/lost', paths.files(), []
  write = files.pipe_file

  def lost(path, content, mode='overwrite'):
    write(path, content, mode=mode)
    if mode == 'create' and not tried:
      tried.append(path)
      raise FileExistsError(path)

  monkeypatch.setattr(files, 'pipe_file', lost)
  monkeypatch.setattr(bucket, '_STALE', 3.0)
  lock = bucket.Lock(folder)
  lock.beat()
  assert tried and not lock.lost and 'waiting' not in caplog.text
  lock.release()
  assert not paths.sizes(folder)


def test_the_lock_is_written_during_a_slow_copy(monkeypatch):
  monkeypatch.setattr(bucket, '_BEAT', 0.02)
  monkeypatch.setattr(bucket, '_COPY', 0.02)
  copying, go_on, beats = threading.Event(), threading.Event(), []
  beat = bucket.Lock.beat
  monkeypatch.setattr(
      bucket.Lock, 'beat', lambda self: beats.append(beat(self)))
  monkeypatch.setattr(
      paths, 'write_whole', lambda *_: (copying.set(), go_on.wait(30)))
  with workdir.held('gs://bucket/slow') as held:
    (held.local / 'metrics.jsonl').write_text('{"step": 0}\n')
    assert copying.wait(30)
    before, last = len(beats), time.monotonic() + 10
    while len(beats) < before + 3 and time.monotonic() < last:
      time.sleep(0.02)
    go_on.set()
    assert len(beats) >= before + 3


def test_files_that_grow_are_copied_as_they_grow(monkeypatch):
  folder = 'gs://bucket/grows'
  paths.write_whole(f'{folder}/metrics.jsonl', '{"step": 0}\n')
  paths.write_whole(f'{folder}/wandb_run.txt', 'name')
  monkeypatch.setattr(bucket, '_BEAT', 0.05)
  monkeypatch.setattr(bucket, '_COPY', 0.1)
  with workdir.held(folder) as held:
    path = held.local / 'metrics.jsonl'
    assert (held.local / 'wandb_run.txt').read_text() == 'name'
    assert path.read_text() == '{"step": 0}\n'
    rows = metrics.JsonLines(path, 1)
    rows.write({'step': 1})
    last = time.monotonic() + 10
    while len(metrics.read(f'{folder}/metrics.jsonl')) < 2:
      assert time.monotonic() < last
      time.sleep(0.05)
    rows.write({'step': 2})
    rows.close()
  assert metrics.read(f'{folder}/metrics.jsonl') == [
      {'step': step} for step in range(3)]
  assert not held.local.exists()


def test_a_bucket_that_fails_costs_no_rows(monkeypatch, caplog):
  folder = 'gs://bucket/fails'
  with pytest.raises(OSError, match='last rows of gs://bucket/fails') as failed:
    with workdir.held(folder) as held:
      (held.local / 'metrics.jsonl').write_text('{"step": 0}\n')
      monkeypatch.setattr(
          paths, 'write_whole',
          lambda path, _: (_ for _ in ()).throw(OSError(f'{path} fails.')))
      held.sync()
      held.sync()
  assert str(held.local) in str(failed.value)
  assert (held.local / 'metrics.jsonl').read_text() == '{"step": 0}\n'
  # Not those of Google's library, which a thread of an earlier test may call.
  def ours():
    return [r for r in caplog.records if r.name == 'absl']

  assert [r.levelno for r in ours()].count(logging.WARNING) == 1
  with pytest.raises(ZeroDivisionError), workdir.held(folder) as held:
    (held.local / 'metrics.jsonl').write_text('{"step": 0}\n')
    raise ZeroDivisionError
  assert ours()[-1].getMessage() == (
      f'The last rows of {folder} could not be written there; they are in '
      f'{held.local}: copy its files by hand.')


def test_problems_and_models_of_a_bucket(tmp_path):
  paths.write_whole('gs://bucket/data/a.jsonl', '{"problem": "1 + 1"}\n')
  (_, row), = problem_files.rows('gs://bucket/data/a.jsonl')
  assert row == {'problem': '1 + 1'}
  (tmp_path / 'm').mkdir()
  (tmp_path / 'm' / 'config.json').write_text('{}')
  paths.upload(tmp_path / 'm', 'gs://bucket/m')
  assert (paths.local_folder('gs://bucket/m') / 'config.json').read_text() == (
      '{}')


def program(name, *arguments, **variables):
  return subprocess.run(
      [sys.executable, '-m', f'jaxrl_llm.{name}', *arguments],
      env={**os.environ, **variables}, cwd=devices.ROOT, capture_output=True,
      text=True, timeout=300)


@pytest.mark.parametrize('variables, said', [
    ({}, 'gs://nope/run cannot be reached or used'),
    # Nobody listens at this port.
    ({'STORAGE_EMULATOR_HOST': 'http://127.0.0.1:9'},
     'gs://nope/run did not answer within')])
def test_a_missing_bucket_is_one_sentence(variables, said):
  began = time.monotonic()
  done = program(
      'train', '--config=configs/countdown.py', '--config.workdir=gs://nope/run',
      **variables)
  assert time.monotonic() - began < 60
  assert done.returncode == 1 and 'Traceback' not in done.stderr
  *_, line = done.stderr.strip().splitlines()
  assert line.startswith(said)


def test_without_gcsfs(monkeypatch):
  monkeypatch.setattr('fsspec.get_filesystem_class', lambda _: (
      _ for _ in ()).throw(ImportError('Install gcsfs')))
  with pytest.raises(ValueError, match=r"pip install 'jaxrl_llm\[gcs\]'"):
    paths._require.__wrapped__()
