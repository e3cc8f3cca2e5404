"""Tests of the files that a run writes, and of its timer."""

import json
import math
import resource
import shutil
import struct
import sys
import time
import types

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.monitoring import metrics, plots, timing


def lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def events(directory):
  """Reads all events: (step, {tag: value}), or (step, None) for a restart."""
  from tensorboardX.proto import event_pb2
  found = []
  for path in sorted(directory.iterdir()):
    data = path.read_bytes()
    while data:
      size, = struct.unpack('<Q', data[:8])
      event = event_pb2.Event.FromString(data[12:12 + size])
      data = data[16 + size:]
      if event.HasField('session_log'):
        found.append((event.step, None))
      elif event.HasField('summary'):
        found.append(
            (event.step, {v.tag: v.simple_value for v in event.summary.value}))
  return found


def test_a_row_is_on_disk_at_once(tmp_path):
  writer = metrics.Writer(tmp_path / 'new' / 'run')
  row = {'reward': np.float32(0.5), 'n': 3, 'x': jnp.float32(0.25),
         'bad': float('nan'), 'worse': np.float64('inf')}
  writer.write(7, row)
  writer.samples([{'step': 7, 'response': '1+2=3 – ü\n', 'reward': math.nan}])
  root = tmp_path / 'new' / 'run'
  assert lines(root / 'metrics.jsonl') == [
      {'step': 7, 'reward': 0.5, 'n': 3, 'x': 0.25, 'bad': None,
       'worse': None}]
  assert lines(root / 'samples.jsonl') == [
      {'step': 7, 'response': '1+2=3 – ü\n', 'reward': None}]
  assert events(root / 'tensorboard') == [
      (0, None), (7, {'reward': 0.5, 'n': 3.0, 'x': 0.25})]
  writer.close()


def test_numbers_survive_to_the_bit(tmp_path):
  values = np.random.default_rng(0).standard_normal(100).astype(np.float32)
  writer = metrics.Writer(tmp_path, tensorboard=False)
  writer.write(0, {str(i): x for i, x in enumerate(values)})
  row, = lines(tmp_path / 'metrics.jsonl')
  assert [np.float32(row[str(i)]) for i in range(100)] == values.tolist()


@pytest.mark.parametrize('torn', ['', '{"step": 9, "rew', '{"step": 2}'])
def test_a_run_that_continues_drops_what_it_does_again(tmp_path, torn):
  writer = metrics.Writer(tmp_path)
  for step in range(6):
    writer.write(step, {'x': step / 3})
    writer.samples([{'step': step, 'text': 'a'}, {'step': step, 'text': 'b'}])
  with open(tmp_path / 'metrics.jsonl', 'a', encoding='utf8') as file:
    file.write(torn)  # no end of line: the process was killed
  writer = metrics.Writer(tmp_path, 4)
  writer.write(4, {'x': -1.0})
  writer.samples([{'step': 4, 'text': 'c'}])
  writer.close()
  rows = lines(tmp_path / 'metrics.jsonl')
  assert rows == [
      {'step': s, 'x': x} for s, x in
      [(0, 0.0), (1, 1 / 3), (2, 2 / 3), (3, 1.0), (4, -1.0)]]
  assert [r['step'] for r in lines(tmp_path / 'samples.jsonl')] == [
      0, 0, 1, 1, 2, 2, 3, 3, 4]
  found = events(tmp_path / 'tensorboard')
  assert found[-2:] == [(4, None), (4, {'x': -1.0})]


def test_a_new_run_starts_afresh(tmp_path):
  for value in (1, 2):
    writer = metrics.Writer(tmp_path, tensorboard=False)
    writer.write(0, {'x': value})
  assert lines(tmp_path / 'metrics.jsonl') == [{'step': 0, 'x': 2}]


def test_read_names_a_bad_line(tmp_path):
  path = tmp_path / 'm.jsonl'
  path.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
  with pytest.raises(ValueError, match='m.jsonl:2 is not JSON'):
    metrics.read(path)
  path.write_text('{"step": 0}\n{"st')
  assert metrics.read(path) == [{'step': 0}]
  assert metrics.read(tmp_path / 'none') == []


NO_ROWS = ['5', '[]', '"x"', 'null', '{}', '{"step": "1"}', '{"step": NaN}',
           '{"step": null}', '{"step": true}', '{"step": [0]}']


@pytest.mark.parametrize('name', ['metrics.jsonl', 'samples.jsonl'])
def test_lines_that_are_no_rows_are_left_out(tmp_path, caplog, name, drawn):
  """A run that goes on finds such lines; the curves are drawn all the same."""
  row = {'step': 1, 'reward/pass@1': 'x', 'update/entropy': [1], 'eval/greedy':
         math.inf}
  (tmp_path / name).write_text(
      '\n'.join(['{"step": 0}', *NO_ROWS, json.dumps(row)]) + '\n')
  writer = metrics.Writer(tmp_path, 2, tensorboard=False)
  writer.write(2, {'reward/pass@1': .5})
  writer.samples([{'step': 2}])
  writer.close()
  warning, = [r.getMessage() for r in caplog.records]
  assert warning == (
      f'{tmp_path}/{name}: 10 lines are no rows with a step and are left out, '
      'the first is line 2.')
  assert [r['step'] for r in lines(tmp_path / name)] == [0, 1, 2]
  assert plots.curves(tmp_path).stat().st_size > 1 << 12


def test_a_line_of_too_many_brackets_is_named(tmp_path):
  (tmp_path / 'm').write_text('[' * 100_000 + '\n{"step": 0}\n')
  with pytest.raises(ValueError, match='m:1 is not JSON'):
    metrics.read(tmp_path / 'm')


def test_any_value_is_written(tmp_path):
  writer = metrics.Writer(tmp_path)
  writer.write(0, {'verdict/\ud800': 1})
  writer.samples([{'step': 0, 'text': '\ud800', 'of': {'x': object}}])
  writer.close()
  assert lines(tmp_path / 'samples.jsonl') == [
      {'step': 0, 'text': '\ufffd', 'of': {'x': "<class 'object'>"}}]
  assert events(tmp_path / 'tensorboard')[1] == (0, {'verdict/\ufffd': 1})


def test_a_full_disk_costs_rows_not_the_run(tmp_path, caplog):
  """The kernel stops every file at 2000 bytes, as a full disk would."""
  writer = metrics.Writer(tmp_path)
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
  try:
    for step in range(50):
      writer.write(step, {f'name/{i}': step for i in range(8)})
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  warnings = [r.getMessage() for r in caplog.records]
  assert len(warnings) == 1 and 'the run continues' in warnings[0]
  writer.write(99, {'x': 1})
  writer.close()
  steps = [row['step'] for row in lines(tmp_path / 'metrics.jsonl')]
  assert steps == [*range(len(steps) - 1), 99] and 5 < len(steps) < 50


def test_wandb_only_if_asked(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'wandb', None)
  metrics.Writer(tmp_path, tensorboard=False).close()
  with pytest.raises(ValueError, match=r'jaxrl_llm\[wandb\]'):
    metrics.Writer(tmp_path, tensorboard=False, wandb='project')

  calls = []
  run = types.SimpleNamespace(
      log=lambda row, step: calls.append((step, row)),
      finish=lambda: calls.append('finish'))
  fake = types.ModuleType('wandb')
  fake.init = lambda **options: calls.append(options) or run
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  for step in (0, 4):
    writer = metrics.Writer(
        tmp_path, step, tensorboard=False, wandb='project', config={'a': 1})
    writer.write(3, {'x': 2, 'bad': math.nan})
    writer.close()
  first, row, finish, second = calls[:4]
  assert first == second and first['project'] == 'project'
  assert first['config'] == {'a': 1} and first['resume'] == 'allow'
  assert row == (3, {'x': 2}) and finish == 'finish'


def test_a_folder_keeps_its_own_run_of_wandb(tmp_path, monkeypatch):
  """A run that starts again, and a copy, are others; a moved folder is not."""
  calls = []
  fake = types.ModuleType('wandb')
  fake.init = lambda **options: calls.append(options) or (
      types.SimpleNamespace(finish=lambda: None))
  monkeypatch.setitem(sys.modules, 'wandb', fake)

  def ident(folder, step, run=''):
    metrics.Writer(
        folder, step, tensorboard=False, wandb='p', run=run).close()
    assert calls[-1]['resume'] == 'allow'
    return calls[-1]['id']

  first = ident(tmp_path / 'a', 0)
  assert ident(tmp_path / 'a', 3) == ident(tmp_path / 'a', 9) == first
  shutil.copytree(tmp_path / 'a', tmp_path / 'b')
  copied = ident(tmp_path / 'b', 3)
  assert copied != first and ident(tmp_path / 'b', 4) == copied
  assert ident(tmp_path / 'a', 4) == first
  shutil.move(tmp_path / 'b', tmp_path / 'moved')
  assert ident(tmp_path / 'moved', 5) == ident(tmp_path / 'moved', 6) == copied
  again = ident(tmp_path / 'a', 0)
  shutil.rmtree(tmp_path / 'a')
  new = ident(tmp_path / 'a', 0)
  assert len({first, copied, again, new}) == 4
  # Of a run in a bucket, whose files are on the disk for a while.
  names = [f'gs://{who}/{"long" * 30}/seed_0' for who in ('ann', 'bob')]
  ids = [ident(tmp_path / f'c{i}', 0, name) for i, name in enumerate(names)]
  assert ids[0] != ids[1]
  shutil.copytree(tmp_path / 'c0', tmp_path / 'd')
  assert ident(tmp_path / 'd', 5, names[0]) == ids[0]
  (tmp_path / 'd' / 'wandb_run.txt').write_bytes(b'\xff')
  assert ident(tmp_path / 'd', 5, names[0]) not in ids


def test_a_run_goes_on_without_wandb(tmp_path, monkeypatch, caplog):
  def fail(*_, **__):
    raise BrokenPipeError(32, 'Broken pipe')
  fake = types.ModuleType('wandb')
  fake.init = lambda **_: types.SimpleNamespace(log=fail, finish=fail)
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  writer = metrics.Writer(tmp_path, tensorboard=False, wandb='project')
  for step in range(3):
    writer.write(step, {'x': step})
  writer.close()
  assert len(lines(tmp_path / 'metrics.jsonl')) == 3
  assert caplog.text.count('Weights & Biases gets no more metrics (Broken') == 1


def test_timer_adds_up_phases(monkeypatch):
  now = [10.0]
  monkeypatch.setattr(time, 'perf_counter', lambda: now[0])
  timer = timing.Timer()
  for phase, seconds in (('a', 1.0), ('b', 2.0), ('a', 4.0)):
    with timer(phase):
      now[0] += seconds
  now[0] += 8.0
  with pytest.raises(KeyError):
    with timer('b'):
      now[0] += 16.0
      raise KeyError
  assert timer.take() == {
      'seconds/step': 31.0, 'seconds/a': 5.0, 'seconds/b': 18.0}
  now[0] += 1.0
  assert timer.take() == {'seconds/step': 1.0}


def test_flops_of_a_phase_add_up_and_are_taken_once():
  timer = timing.Timer()
  for phase, flops in (('a', 1.0), ('b', 2.0), ('a', 4.0)):
    timer.note(phase, flops)
  assert timer.take_flops() == {'a': 5.0, 'b': 2.0}
  assert timer.take_flops() == {}


def test_phases_within_phases_are_disjoint(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(time, 'perf_counter', lambda: now[0])
  timer = timing.Timer()

  def spend(seconds):
    now[0] += seconds

  with timer('a'):
    spend(1)
    with timer('b'):
      spend(2)
      with timer('c'):
        spend(4)
    with pytest.raises(KeyError), timer('c'):
      spend(8)
      raise KeyError
    with timer('a'):
      spend(16)
  with timer('b'):
    spend(32)
  assert timer.take() == {
      'seconds/step': 63, 'seconds/a': 17, 'seconds/b': 34, 'seconds/c': 12}


def test_speed():
  row = timing.speed(
      {'seconds/step': 4.0, 'seconds/sample': 1.0, 'seconds/update': 2.0},
      tokens=100, flops={'sample': 10.0, 'update': 60.0}, rate=50.0, memory=9)
  assert row == {
      'seconds/step': 4.0, 'seconds/sample': 1.0, 'seconds/update': 2.0,
      'speed/tokens_per_second': 25.0, 'speed/flops': 70.0,
      'speed/flops_share': 0.35, 'speed/flops_share/sample': 0.2,
      'speed/flops_share/update': 0.6, 'memory/peak': 9.0}


def test_a_row_costs_little(tmp_path):
  writer = metrics.Writer(tmp_path)
  row = {f'some/name/{i}': np.float32(i) for i in range(60)}
  writer.write(0, row)
  start = time.process_time()
  for step in range(50):
    writer.write(step, row)
  # Half a millisecond alone; under 5% of a 150 ms step even if ten times that.
  assert (time.process_time() - start) / 50 < 0.005
