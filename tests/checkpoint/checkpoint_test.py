"""Tests of checkpoints: exact bits, written whole or not at all."""

import pathlib
import re
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm import checkpoint, sharding
from jaxrl_llm.base import phases
from jaxrl_llm.checkpoint import files
from tests.helpers import devices
from tests.helpers.states import (
  abstract,
  bits,
  Learner,
  make_state,
  one_warning,
  write,
)


@pytest.mark.parametrize('view', [abstract, lambda tree: tree])
def test_round_trip_is_bit_identical(tmp_path, view):
  write(tmp_path, [3])
  like = view(make_state(8))
  found = checkpoint.Checkpointer(tmp_path, {}).restore(like)
  assert found.step == 3 and found.host == {'step': 3}
  assert found.config == {'seed': 0}
  assert bits(found.state) == bits(make_state(3))
  assert jax.random.key_impl(found.state['keys']) == jax.random.key_impl(
      make_state(3)['keys'])


def test_nothing_to_restore(tmp_path):
  assert checkpoint.restore(tmp_path / 'no', make_state(0)) is None
  assert checkpoint.Checkpointer(
      tmp_path / 'new', {}).restore(make_state(0)) is None


def test_keeps_the_newest_and_the_best(tmp_path):
  saver = checkpoint.Checkpointer(tmp_path, {}, keep=2)
  for step, score in enumerate([.1, .9, .2, None, float('nan'), .3, .4]):
    saver.save(step, {'x': np.full(3, step)}, {}, score=score)
  saver.close()
  assert checkpoint.steps(tmp_path) == [1, 5, 6]
  assert checkpoint.score(tmp_path, 1) == .9
  # The best survives a restart, and gives way to a better one.
  saver = checkpoint.Checkpointer(tmp_path, {}, keep=1)
  assert checkpoint.restore(tmp_path, {'x': np.zeros(3, int)}).step == 6
  best = checkpoint.restore(tmp_path, {'x': np.zeros(3, int)}, best=True)
  assert best.step == 1 and best.state['x'].tolist() == [1, 1, 1]
  saver.save(7, {'x': np.zeros(3)}, {}, score=.8)
  saver.wait()
  assert checkpoint.steps(tmp_path) == [1, 7]
  saver.save(8, {'x': np.zeros(3)}, {}, score=1.)
  saver.close()
  assert checkpoint.steps(tmp_path) == [8]
  with pytest.raises(ValueError, match='checkpoint.keep=0'):
    checkpoint.Checkpointer(tmp_path, {}, keep=0)


def test_a_save_counts_the_bytes_on_disk(tmp_path, monkeypatch):
  began = []
  saver = checkpoint.Checkpointer(tmp_path / 'new', {})
  begin = phases.begin
  monkeypatch.setattr(phases, 'begin', lambda *args, **kwargs: (
      began.append((args, kwargs)), begin(*args, **kwargs))[1])
  saver.save(1, {'x': np.zeros(750_000)}, {})
  saver.close()
  checkpoint.restore(tmp_path / 'new', {'x': np.zeros(750_000)})
  names = [args[0] for args, _ in began]
  assert names == ['saving'] * (len(names) - 1) + ['reading the checkpoint']
  # The first waits for nothing, and knows no size yet.
  assert {args[1:3] for args, _ in began[1:-1]} == {(6, 'MB')}

  (tmp_path / f'2{files.TEMPORARY}-7').mkdir()
  with files.saving(tmp_path, 6_000_000) as phase:
    assert phase.counts().startswith('0/6 MB ')
    (tmp_path / f'2{files.TEMPORARY}-7' / 'x').write_bytes(bytes(4_000_000))
    assert phase.counts().startswith('4/6 MB ')
    (tmp_path / f'2{files.TEMPORARY}-7' / 'x').rename(tmp_path / 'x')
    assert phase.counts().startswith('0/6 MB ')


def test_a_step_that_is_there_is_left_alone(tmp_path):
  saver = checkpoint.Checkpointer(tmp_path, {})
  saver.save(4, {'x': np.zeros(3)}, {'n': 1})
  saver.save(4, {'x': np.ones(3)}, {'n': 2})
  saver.close()
  assert checkpoint.restore(tmp_path, {'x': np.zeros(3)}).host == {'n': 1}


def test_save_returns_before_the_files_are_written(tmp_path, monkeypatch):
  """What was handed over may be donated and changed meanwhile."""
  go_on = threading.Event()
  sign = checkpoint.Checkpointer._sign

  def slow(self):
    assert go_on.wait(60)
    sign(self)

  monkeypatch.setattr(checkpoint.Checkpointer, '_sign', slow)
  saver = checkpoint.Checkpointer(tmp_path, {})
  save, handed = saver._manager.save, []
  monkeypatch.setattr(
      saver._manager, 'save', lambda step, args, **options: (
          handed.append(args), save(step, args=args, **options)))
  spoil = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
  x, y, host = jnp.arange(300_000.), np.arange(300_000), {'list': [1]}
  with jax.transfer_guard('disallow'):
    saver.save(1, {'x': x, 'y': y}, host)
  assert not np.shares_memory(handed[0].state.item['y'], y)
  assert handed[0].host.item['list'] is not host['list']
  for _ in range(3):
    x = spoil(x)
  y[:] = -1
  host['list'].append(2)
  assert checkpoint.steps(tmp_path) == []
  go_on.set()
  saver.close()
  found = checkpoint.restore(tmp_path, {'x': x, 'y': y})
  assert found.state['x'].tolist() == found.state['y'].tolist()
  assert found.state['y'].tolist() == list(range(300_000))
  assert found.host == {'list': [1]}


def test_restored_arrays_can_be_donated(tmp_path):
  saver = checkpoint.Checkpointer(tmp_path, {})
  saver.save(1, {'x': jnp.arange(1000.)}, {})
  x = saver.restore(abstract({'x': jnp.zeros(1000)})).state['x']
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
  assert x.is_deleted()
  assert y.tolist() == list(range(1, 1001))


def names(path):
  return sorted(file.name for file in path.iterdir())


def truncate(path):
  path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(bytes(data))


def empty(path):
  path.write_bytes(b'')


@pytest.mark.parametrize('name, harm', [
    ('files.json', empty), ('files.json', pathlib.Path.unlink),
    ('host/metadata', flip), ('metrics/metrics', truncate),
    ('state/_METADATA', pathlib.Path.unlink),
    ('state/ocdbt.process_0/d/*', truncate),
    ('state/ocdbt.process_0/d/*', flip)])
def test_a_torn_newest_falls_back(tmp_path, caplog, name, harm):
  write(tmp_path, [1, 2])
  target = max((tmp_path / '2').glob(name), key=lambda p: p.stat().st_size)
  harm(target)
  untouched = checkpoint.restore(tmp_path, abstract(make_state(0)))
  assert untouched.step == 1
  assert checkpoint.steps(tmp_path) == [1, 2]  # reading changes nothing
  one_warning(caplog, tmp_path / '2', 'not whole', 'the one before')
  caplog.clear()

  saver = checkpoint.Checkpointer(tmp_path, {})
  found = saver.restore(abstract(make_state(0)))
  assert len(caplog.records) == 1
  reason = '' if name == 'files.json' else target.relative_to(tmp_path / '2')
  one_warning(caplog, tmp_path / '2', reason)
  assert found.step == 1 and bits(found.state) == bits(make_state(1))
  assert (tmp_path / 'torn-2').is_dir()
  # The run gets there again.
  saver.save(2, make_state(2), {})
  saver.close()
  assert bits(checkpoint.restore(
      tmp_path, abstract(make_state(0))).state) == bits(make_state(2))
  assert names(tmp_path) == ['1', '2']


def test_all_torn_means_none(tmp_path, caplog):
  write(tmp_path, [1, 2])
  for step in (1, 2):
    (tmp_path / str(step) / 'files.json').unlink()
  saver = checkpoint.Checkpointer(tmp_path, {})
  assert saver.restore(make_state(0)) is None
  assert len(caplog.records) == 2
  saver.save(1, make_state(1), {})
  saver.close()
  assert names(tmp_path) == ['1', 'torn-2']  # until the run is there again
  saver = checkpoint.Checkpointer(tmp_path, {})
  saver.save(3, make_state(3), {})
  saver.close()
  assert names(tmp_path) == ['1', '3']


def test_another_config_is_refused(tmp_path):
  write(tmp_path, [1])

  def differs(config):
    return [] if config['seed'] == 7 else ['seed: 0 -> 7', 'x: 1 -> 2']

  saver = checkpoint.Checkpointer(tmp_path, {'seed': 7})
  with pytest.raises(ValueError, match='another config: seed: 0 -> 7; x: 1'):
    saver.restore(make_state(0), differs=differs)
  assert checkpoint.steps(tmp_path) == [1]
  assert checkpoint.restore(tmp_path, make_state(0)).config == {'seed': 0}


def test_other_arrays_are_refused_by_name(tmp_path):
  write(tmp_path, [1])
  like = make_state(0)
  like['buffer'] = like['buffer'][:2]
  like['position'] = like.pop('rate')
  with pytest.raises(ValueError) as error:
    checkpoint.restore(tmp_path, like)
  for part in (
      "buffer was [[4, 3], 'int16'], is [[2, 3], 'int16']",
      "position was [[], 'int64'], is [[], 'float64']",
      "rate was [[], 'float64'], is absent): start again in another workdir."):
    assert part in str(error.value)
  some = {'learner': Learner(make_state(0)['learner'].params, None, None)}
  found = checkpoint.restore(tmp_path, some, partial=True)
  assert bits(found.state['learner'].params) == bits(
      make_state(1)['learner'].params)


def test_another_layout_is_refused_in_one_sentence(tmp_path):
  """As a version with other names would find it; also of what is read alone."""
  write(tmp_path, [1])
  for like, partial in (
      ({'learners': (make_state(0)['learner'],)}, False),
      ({'learners': [make_state(0)['learner']]}, True)):
    with pytest.raises(ValueError) as error:
      checkpoint.restore(tmp_path, like, partial=partial)
    text = str(error.value)
    assert text.startswith(
        f'Checkpoint {tmp_path / "1"}: another model or version of this '
        'package wrote it, with other arrays (')
    assert re.search(r'; \d+ more\): start again in another workdir\.$', text)
    assert len(text) < 500 + len(str(tmp_path)) and '\n' not in text
  assert checkpoint.steps(tmp_path) == [1]


def between_meshes(directory):
  """Saves on one mesh of 8 devices and restores on others."""
  def place(sizes, rules, learner=None):
    mesh = sharding.learner_mesh(sharding.make_mesh(*sizes), learner)
    return sharding.shardings(values, rules, mesh)

  rng = np.random.default_rng(0)
  values = {
      'embed': rng.standard_normal((24, 16), np.float32),
      'layers': {'q': rng.standard_normal((2, 16, 8)).astype(jnp.bfloat16)}}
  state = jax.device_put(values, place((2, 2, 2), sharding.TRAIN_RULES))
  saver = checkpoint.Checkpointer(directory, {})
  saver.save(1, state, {})
  good = []
  for sizes, *learner in (
      ((8, 1, 1),), ((1, 8, 1),), ((1, 2, 4),), ((2, 2, 2),), ((2, 2, 2), 1),
      ((1, 2, 4), 2)):
    want = place(sizes, sharding.TRAIN_RULES, *learner)
    like = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        values, want)
    got = saver.restore(like).state
    good.append(
        jax.tree.map(lambda x: x.sharding, got) == want
        and bits(jax.device_get(got)) == bits(values))
  saver.close()
  return good


def test_another_mesh_can_restore(tmp_path):
  assert devices.run(between_meshes, str(tmp_path)) == [True] * 6


def test_host_state_must_be_json(tmp_path):
  saver = checkpoint.Checkpointer(tmp_path, {})
  with pytest.raises(TypeError, match='not JSON serializable'):
    saver.save(1, {}, {'x': np.zeros(3)})
  assert not checkpoint.steps(tmp_path)
