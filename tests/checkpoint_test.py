"""Tests of checkpoints: exact bits, written whole or not at all."""

import asyncio
import contextlib
import errno
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_llm import checkpoint, sharding
from jaxrl_llm.checkpoint import saver as saver_lib
from jaxrl_llm.checkpoint.tree import is_key
from tests import devices


@struct.dataclass
class Learner:
  params: dict[str, jax.Array]
  opt_state: optax.OptState
  step: jax.Array


def make_state(seed, size=1000):
  """Returns a state with every kind of leaf, different for each seed."""
  rng = np.random.default_rng(seed)
  params = {
      'w': jnp.asarray(rng.standard_normal((size // 10, 10)), jnp.float32),
      'half': jnp.asarray(rng.standard_normal(7), jnp.bfloat16),
      'odd': jnp.asarray([jnp.nan, -0.0, jnp.inf, 1e-45], jnp.float32)}
  return dict(
      learner=Learner(
          params, optax.adam(1e-3).init(params), jnp.int32(seed)),
      key=jax.random.key(seed),
      keys=jax.random.split(jax.random.key(seed, impl='rbg'), 3),
      flags=jnp.asarray(rng.random(5) < 0.5),
      buffer=rng.integers(0, 99, (4, 3), dtype=np.int16),
      nothing=jnp.zeros((0, 3)), missing=None, position=seed, rate=seed / 7)


def bits(tree):
  """Returns a tree's structure, and type, dtype, shape and bytes of leaves."""
  def one(x):
    if is_key(x):
      return str(x.dtype), one(jax.random.key_data(x))
    kind = 'device' if isinstance(x, jax.Array) else type(x).__name__
    x = np.asarray(x)
    return kind, str(x.dtype), x.shape, x.tobytes()
  return jax.tree.structure(tree), [one(x) for x in jax.tree.leaves(tree)]


def abstract(tree):
  """Replaces the device arrays of a tree by shapes and shardings."""
  def one(x):
    return x if not isinstance(x, jax.Array) else jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=x.sharding)
  return jax.tree.map(one, tree)


def write(directory, steps, **options):
  """Saves `make_state(step)` for each step; a later step has a lower score."""
  saver = checkpoint.Checkpointer(directory, {'seed': 0}, **options)
  for step in steps:
    saver.save(step, make_state(step), {'step': step}, score=-step)
  saver.close()


def one_warning(caplog, *parts):
  """Asserts that the last warning is one line that contains these words."""
  line = caplog.records[-1].getMessage()
  assert '\n' not in line
  for part in parts:
    assert str(part) in line
  return line


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
  # The run gets there again.
  saver.save(2, make_state(2), {})
  saver.close()
  assert bits(checkpoint.restore(
      tmp_path, abstract(make_state(0))).state) == bits(make_state(2))
  assert (tmp_path / 'torn-2').is_dir()


def test_all_torn_means_none(tmp_path, caplog):
  write(tmp_path, [1, 2])
  for step in (1, 2):
    (tmp_path / str(step) / 'files.json').unlink()
  saver = checkpoint.Checkpointer(tmp_path, {})
  assert saver.restore(make_state(0)) is None
  assert len(caplog.records) == 2
  saver.save(1, make_state(1), {})
  saver.close()
  assert checkpoint.steps(tmp_path) == [1]


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
      "rate was [[], 'float64'], is absent"):
    assert part in str(error.value)
  some = {'learner': Learner(make_state(0)['learner'].params, None, None)}
  found = checkpoint.restore(tmp_path, some, partial=True)
  assert bits(found.state['learner'].params) == bits(
      make_state(1)['learner'].params)


@pytest.mark.parametrize('error', [
    OSError(errno.ENOSPC, 'No space'), ValueError('RESOURCE_EXHAUSTED: x')])
def test_a_full_disk_costs_only_that_checkpoint(
    tmp_path, caplog, monkeypatch, error):
  write(tmp_path, [1])
  saver = checkpoint.Checkpointer(tmp_path, {}, keep=1)

  def full(*args, **kwargs):
    raise error

  with monkeypatch.context() as patch:  # before anything is written
    patch.setattr(saver._manager, 'save', full)
    saver.save(2, make_state(2), {})
  assert len(caplog.records) == 1
  one_warning(caplog, 'step 2', 'disk is full', 'goes on', 'of step 1')
  with monkeypatch.context() as patch:  # while it is written
    patch.setattr(saver_lib.files, 'checksum', full)
    saver.save(3, make_state(3), {})
    saver.wait()
  assert len(caplog.records) == 2
  one_warning(caplog, 'step 3', 'disk is full', 'goes on', 'of step 1')
  assert [p.name for p in tmp_path.iterdir()] == ['1']
  assert checkpoint.restore(tmp_path, make_state(0)).step == 1
  saver.save(4, make_state(4), {})
  saver.close()
  assert checkpoint.steps(tmp_path) == [1, 4]  # the best, and the newest
  assert len(caplog.records) == 2


@pytest.mark.filterwarnings('error::pytest.PytestUnraisableExceptionWarning')
def test_files_that_the_system_refuses_to_write(tmp_path, caplog):
  """The real thing: the kernel stops every file at 32 KiB."""
  saver = checkpoint.Checkpointer(tmp_path, {}, keep=1)
  saver.save(1, make_state(1), {})
  saver.wait()
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, limits[1]))
  try:
    saver.save(2, make_state(2, size=100_000), {})
    saver.wait()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert len(caplog.records) == 1
  one_warning(caplog, 'step 2', 'could not be written', 'of step 1')
  assert bits(checkpoint.restore(
      tmp_path, abstract(make_state(0))).state) == bits(make_state(1))
  saver.save(3, make_state(3, size=100_000), {})
  saver.close()
  assert checkpoint.steps(tmp_path) == [3]  # now that it is whole, 1 may go


def test_other_writers_of_a_failed_save_are_not_heard(tmp_path, caplog):
  """asyncio reports what nobody waited for, when it is collected."""
  checkpoint.Checkpointer(tmp_path, {}).close()
  with contextlib.closing(asyncio.new_event_loop()) as loop:
    for name, heard in (('4.orbax-checkpoint-tmp/x', 0), ('elsewhere', 1)):
      loop.create_future().set_exception(ValueError(str(tmp_path / name)))
      assert len(caplog.records) == heard


ENDLESS = '''
import sys, jax.numpy as jnp
from jaxrl_llm import checkpoint
saver = checkpoint.Checkpointer(sys.argv[1], {}, keep=2)
found = saver.restore({'x': jnp.zeros(200_000)})
step = found.step if found else 0
while True:
  step += 1
  saver.save(step, {'x': jnp.sin(jnp.arange(200_000.) + step)}, {'step': step})
  if step % 5 == 0: print(step, flush=True)
'''


def test_kill_9_never_leaves_a_half_step(tmp_path):
  reached = 0
  for delay in (0.0, 0.013):
    child = subprocess.Popen(
        [sys.executable, '-c', ENDLESS, str(tmp_path)], cwd=devices.ROOT,
        stdout=subprocess.PIPE, text=True)
    printed = int(child.stdout.readline())
    time.sleep(delay)
    child.send_signal(signal.SIGKILL)
    child.wait()
    found = checkpoint.steps(tmp_path)
    # The step that was printed may still have been under way.
    assert found and found[-1] >= printed - 1 >= reached
    for step in found:
      assert checkpoint.fault(tmp_path / str(step)) is None
    last = checkpoint.restore(tmp_path, {'x': jnp.zeros(200_000)})
    assert last.step == found[-1] and last.host == {'step': last.step}
    np.testing.assert_array_equal(
        last.state['x'], jnp.sin(jnp.arange(200_000.) + last.step))
    reached = last.step
  checkpoint.Checkpointer(tmp_path, {}).close()
  assert not list(tmp_path.glob('*tmp*'))


def between_meshes(directory):
  """Saves on one mesh of 8 devices and restores on others."""
  def place(sizes, rules):
    mesh = sharding.make_mesh(*sizes)
    return sharding.shardings(values, rules, mesh)

  rng = np.random.default_rng(0)
  values = {
      'embed': rng.standard_normal((24, 16), np.float32),
      'layers': {'q': rng.standard_normal((2, 16, 8)).astype(jnp.bfloat16)}}
  state = jax.device_put(values, place((2, 2, 2), sharding.TRAIN_RULES))
  saver = checkpoint.Checkpointer(directory, {})
  saver.save(1, state, {})
  good = []
  for sizes in ((8, 1, 1), (1, 8, 1), (1, 2, 4), (2, 2, 2)):
    want = place(sizes, sharding.TRAIN_RULES)
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
  assert devices.run(between_meshes, str(tmp_path)) == [True] * 4


def test_host_state_must_be_json(tmp_path):
  saver = checkpoint.Checkpointer(tmp_path, {})
  with pytest.raises(TypeError, match='not JSON serializable'):
    saver.save(1, {}, {'x': np.zeros(3)})
  assert not checkpoint.steps(tmp_path)
