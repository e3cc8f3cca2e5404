"""Tests of meshes, layouts and the cast to sampling, on 1 and 8 devices."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.models import config, transformer
from jaxrl_llm.sharding import cpu
from tests.helpers import devices
from tests.helpers.tolerance import decoder, rounding

MESHES = ((8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 4))
# With meshes of the learner's own: tensor there.
LEARNERS = (((2, 2, 2), 1), ((1, 2, 4), 2), ((1, 2, 4), 1))


def shapes_of(name):
  return jax.eval_shape(
      lambda key: transformer.init(key, config.PRESETS[name]),
      jax.random.key(0))


@pytest.mark.parametrize('name', sorted(config.PRESETS))
def test_every_preset_has_a_layout(name):
  mesh = sharding.make_mesh(1, 1, 1)
  for rules in (sharding.TRAIN_RULES, sharding.SAMPLE_RULES):
    tree = sharding.shardings(shapes_of(name), rules, mesh)
    assert jax.tree.structure(tree) == jax.tree.structure(shapes_of(name))


@pytest.mark.parametrize('name', sorted({*config.PRESETS} - {'tiny'}))
def test_every_real_size_is_split_evenly_over_a_pod(name):
  """But for vectors: a thousandth of the weights."""
  shapes = shapes_of(name)
  tensor = min(config.PRESETS[name].kv_heads, 8)
  mesh = AbstractMesh((128 // 16 // tensor, 16, tensor), sharding.AXES)
  total = sum(x.size for x in jax.tree.leaves(shapes))
  for rules, parts in (
      (sharding.TRAIN_RULES, 16 * tensor), (sharding.SAMPLE_RULES, tensor)):
    own = sum(
        math.prod(place.shard_shape(x.shape)) for x, place in zip(
            jax.tree.leaves(shapes),
            jax.tree.leaves(sharding.shardings(shapes, rules, mesh))))
    assert total / parts <= own < total / parts + total / 1000


def specs(name, rules):
  mesh = sharding.make_mesh(1, 1, 1)
  tree = sharding.shardings(shapes_of(name), rules, mesh)
  return {
      jax.tree_util.keystr(k, simple=True, separator='/'): s.spec
      for k, s in jax.tree_util.tree_leaves_with_path(tree)}


def test_layouts_are_column_then_row_parallel():
  train = specs('qwen3-8b', sharding.TRAIN_RULES)
  for name in ('q', 'k', 'v', 'gate', 'up'):
    assert train['layers/' + name] == P(None, 'fsdp', 'tensor')
  for name in ('o', 'down'):
    assert train['layers/' + name] == P(None, ('tensor', 'fsdp'), None)
  assert train['embed'] == train['unembed'] == P(('tensor', 'fsdp'))
  assert train['norm'] == train['layers/attn_norm'] == P()
  biased = specs('qwen2.5-1.5b', sharding.TRAIN_RULES)
  assert biased['layers/q_bias'] == P(None, 'tensor')
  for spec in specs('gemma2-2b', sharding.SAMPLE_RULES).values():
    assert 'fsdp' not in str(spec)
  sample = specs('qwen3-8b', sharding.SAMPLE_RULES)
  assert sample['embed'] == sample['unembed'] == P('tensor')
  assert sample['layers/down'] == P(None, 'tensor', None)


def test_first_match_wins():
  mesh = sharding.make_mesh(1, 1, 1)
  rules = ((r'w$', P('tensor')), (r'.*', P()))
  tree = sharding.shardings(
      {'w': np.zeros(4), 'x': np.zeros(4)}, rules, mesh)
  assert tree['w'].spec == P('tensor') and tree['x'].spec == P()


def test_unknown_parameter_is_named():
  mesh = sharding.make_mesh(1, 1, 1)
  with pytest.raises(ValueError, match=r'layers/stray of shape \(2, 3\)'):
    sharding.shardings(
        {'layers': {'stray': np.zeros((2, 3))}}, sharding.TRAIN_RULES, mesh)
  with pytest.raises(ValueError, match=r'layers/q .* fewer axes'):
    sharding.shardings(
        {'layers': {'q': np.zeros(3)}}, sharding.TRAIN_RULES, mesh)


@pytest.mark.parametrize('sizes, message', [
    ((-1, -1, 1), r'mesh.data=-1, mesh.fsdp=-1, .*only one'),
    ((0, 1, 1), r'mesh.data=0.*positive'),
    ((1, -2, 1), r'mesh.fsdp=-2.*positive'),
    ((2, 1, 1), r'makes 2 devices, but there are 1'),
    ((-1, 1, 3), r'1 devices are not a multiple of 3'),
])
def test_bad_meshes_name_the_numbers(sizes, message):
  with pytest.raises(ValueError, match=message):
    sharding.make_mesh(*sizes)


def test_table_adds_up():
  # Two matrices of 4 x 6: 96 bytes each in float32, 48 in bfloat16; the norm
  # of 5 stays float32, 20 bytes.
  shapes = {
      'layers': {'q': np.zeros((1, 4, 6), np.float32),
                 'o': np.zeros((1, 4, 6), np.float32)},
      'norm': np.zeros(5, np.float32)}
  mesh = sharding.make_mesh(1, 1, 1)
  text = sharding.table(shapes, sharding.TRAIN_RULES, mesh)
  assert text.splitlines()[-2].split()[-2] == '212'
  text = sharding.table(shapes, sharding.SAMPLE_RULES, mesh, jnp.bfloat16)
  assert text.splitlines()[-2].split()[-2] == '116'
  assert 'layers/q' in text and 'bfloat16' in text
  text = sharding.table(
      {'embed': np.zeros((4, 6))}, sharding.TRAIN_RULES, mesh)
  assert ' tensor x fsdp ' in text


CFG = dataclasses.replace(
    config.PRESETS['tiny'], width=32, layers=1, head_dim=8, mlp_width=64)
SHAPES = jax.eval_shape(lambda: transformer.init(jax.random.key(0), CFG))


def place(sizes):
  """Returns a mesh, the training layout, and parameters equal on any mesh."""
  mesh = sharding.make_mesh(*sizes)
  places = sharding.shardings(SHAPES, sharding.TRAIN_RULES, mesh)
  noise = np.random.default_rng(0)
  params = jax.tree.map(
      lambda x: 0.2 * noise.standard_normal(x.shape, np.float32), SHAPES)
  return mesh, places, jax.device_put(params, places)


def forward(sizes):
  """Computes the hidden states of 8 rows on a mesh."""
  mesh, _, params = place(sizes)
  tokens = np.arange(40).reshape(8, 5) % CFG.vocab_size
  tokens = jax.device_put(tokens, sharding.rows(mesh))
  run = jax.jit(lambda p, t: transformer.forward(p, t, cfg=CFG)[0])
  return np.asarray(run(params, tokens)).tolist()


def facts(sizes):
  """Returns the shardings on a mesh, and results of the cast to sampling."""
  mesh, places, params = place(sizes)
  optimizer = optax.chain(
      optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
  opt_shapes = jax.eval_shape(optimizer.init, SHAPES)
  opt = sharding.optimizer_shardings(
      opt_shapes, SHAPES, sharding.TRAIN_RULES, mesh)
  adam = opt[1][0]
  exact = sharding.to_sampling(SHAPES, mesh, jnp.float32).apply(params)
  fast = sharding.to_sampling(SHAPES, mesh, jnp.bfloat16).apply(params)
  same = jax.tree.map(
      lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()),
      params, exact)
  cast = jax.tree.map(
      lambda a, b: bool((np.asarray(a).astype(b.dtype) == np.asarray(b)).all()),
      params, fast)
  kept = jax.tree.map(lambda a, b: a is b, params, exact)

  def part(x):
    return x.sharding.shard_shape(x.shape)

  return dict(
      shape=list(mesh.shape.values()),
      data_shards=sharding.data_shards(mesh),
      rows=sharding.rows(mesh).shard_shape((8, 5)),
      q=part(params['layers']['q']), down=part(params['layers']['down']),
      embed=part(params['embed']), sample_q=part(fast['layers']['q']),
      moments=adam.mu == places and adam.nu == places,
      count=adam.count.is_fully_replicated,
      same=all(jax.tree.leaves(same)), cast=all(jax.tree.leaves(cast)),
      types=[str(fast['embed'].dtype), str(fast['norm'].dtype),
             str(fast['layers']['q_norm'].dtype)],
      kept=[kept['layers']['q'], kept['norm']])


def of_learner(sizes, tensor):
  """Returns facts about the cast from a learner's mesh of its own."""
  mesh = sharding.make_mesh(*sizes, learner_tensor=tensor)
  learner = sharding.learner_mesh(mesh, tensor)
  params = jax.device_put(place(sizes)[2], sharding.shardings(
      SHAPES, sharding.TRAIN_RULES, learner))
  made = sharding.to_sampling(SHAPES, mesh, jnp.bfloat16, learner=learner)
  weights = made.apply(params)
  same = jax.tree.map(
      lambda a, b, of: bool(
          (np.asarray(a).astype(b.dtype) == np.asarray(b)).all())
      and b.sharding == of.sharding and b.dtype == of.dtype,
      params, weights, made.result)
  return dict(
      shape=list(learner.shape.values()),
      devices=bool((learner.devices.flat == mesh.devices.flat).all()),
      q=params['layers']['q'].sharding.shard_shape((1, 32, 32)),
      sample_q=weights['layers']['q'].sharding.shard_shape((1, 32, 32)),
      same=all(jax.tree.leaves(same)),
      kept=sharding.learner_mesh(mesh, mesh.shape['tensor']) is mesh)


def on_eight():
  return ([facts(sizes) for sizes in MESHES], forward((2, 2, 2)),
          [of_learner(*case) for case in LEARNERS])


def test_layouts_on_eight_devices():
  results, hidden, learners = devices.run(on_eight)
  want = forward((1, 1, 1))
  np.testing.assert_allclose(
      hidden, want, rtol=0,
      atol=rounding(decoder(CFG, 5), magnitude=np.abs(want).max()))
  # Nothing to do, nothing copied.
  assert facts((1, 1, 1))['kept'] == [True, True]
  for (data, fsdp, tensor), got in zip(MESHES, results):
    assert got['shape'] == [data, fsdp, tensor]
    assert got['data_shards'] == data * fsdp
    assert got['rows'] == [8 // (data * fsdp), 5]
    assert got['q'] == [1, 32 // fsdp, 32 // tensor]
    assert got['down'] == [1, 64 // (tensor * fsdp), 32]
    assert got['embed'] == [24 // (tensor * fsdp), 32]
    assert got['sample_q'] == [1, 32, 32 // tensor]
    assert got['moments'] and got['count']
    assert got['same'] and got['cast']
    assert got['types'] == ['bfloat16', 'float32', 'float32']
    assert got['kept'] == [fsdp == 1, True]
  for ((data, fsdp, tensor), part), got in zip(LEARNERS, learners, strict=True):
    assert got['shape'] == [data, fsdp * tensor // part, part]
    assert got['q'] == [1, 32 * part // (fsdp * tensor), 32 // part]
    assert got['sample_q'] == [1, 32, 32 // tensor]
    assert got['devices'] and got['same'] and got['kept']


def relaid(learner=None):
  """Returns bytes per device of temporaries and of the result of a reshard."""
  model = dataclasses.replace(
      config.PRESETS['tiny'], layers=16, width=64, mlp_width=128)
  shapes = jax.eval_shape(lambda: transformer.init(jax.random.key(0), model))
  mesh = sharding.make_mesh(1, 4, 2)
  convert = sharding.to_sampling(
      shapes, mesh, jnp.bfloat16, learner=sharding.learner_mesh(mesh, learner))
  memory = convert.lower().compile().memory_analysis()
  return [memory.temp_size_in_bytes, memory.output_size_in_bytes]


def both():
  return [relaid(), relaid(1)]


def test_sampling_weights_are_made_a_layer_at_a_time():
  for beside, result in devices.run(both):
    assert beside < result / 4


def failures():
  """Returns error messages of wrong meshes on 8 devices, and inferred sizes."""
  messages = []

  def catch(f, *args):
    try:
      f(*args)
    except ValueError as error:
      messages.append(str(error))

  mesh = sharding.make_mesh(1, 2, -1)
  catch(sharding.shardings, {'embed': np.zeros((28, 6))},
        sharding.TRAIN_RULES, mesh)
  catch(sharding.shardings, {'layers': {'up': np.zeros((1, 4, 6))}},
        sharding.TRAIN_RULES, mesh)
  catch(sharding.make_mesh, -1, 3, 1)
  catch(sharding.make_mesh, 2, 2, 1)
  catch(sharding.make_mesh, 1, 2, -1, None, 3)
  few = sharding.make_mesh(-1, 1, 1, jax.devices()[:3])
  return [messages, list(mesh.shape.values()), list(few.shape.values())]


def test_what_does_not_divide_is_named():
  (embed, up, free, fixed, learner), mesh, few = devices.run(failures)
  assert mesh == [1, 2, 4] and few == [3, 1, 1]
  assert embed == (
      'Parameter embed of shape (28, 6) cannot be split: its axis 0 (28) does '
      'not divide over mesh.tensor x mesh.fsdp = 4 x 2; choose sizes whose '
      'product divides it, and use mesh.data for the other devices.')
  assert up == (
      'Parameter layers/up of shape (1, 4, 6) cannot be split: its axis 2 (6) '
      'does not divide over mesh.tensor = 4; choose a divisor, such as 2.')
  assert '8 devices are not a multiple of 3' in free
  assert 'makes 4 devices, but there are 8' in fixed
  assert learner == (
      'mesh.learner_tensor=3 does not divide mesh.tensor=4: use a divisor of '
      'it, such as 1, or none for the same mesh.')


def test_optimizer_leaves_of_another_shape_are_replicated():
  mesh = sharding.make_mesh(1, 1, 1)
  shapes = {'layers': {'q': np.zeros((2, 4, 6))}}
  state = {'v_row': {'layers': {'q': np.zeros((2, 4))}}, 'trace': shapes,
           'count': np.zeros(())}
  got = sharding.optimizer_shardings(
      state, shapes, sharding.TRAIN_RULES, mesh)
  assert got['v_row']['layers']['q'].spec == got['count'].spec == P()
  assert got['trace']['layers']['q'].spec == P(None, 'fsdp', 'tensor')


def split_in_three():
  """Returns the number of devices after splitting the CPU into three."""
  sharding.split_cpu(3)
  return jax.device_count()


def test_a_cpu_counts_as_several_devices():
  assert devices.run(split_in_three, devices=None) == 3
  # What the environment says.
  assert devices.run(split_in_three, devices=2) == 2


def test_splitting_the_cpu_too_late_is_said(monkeypatch):
  said = []
  monkeypatch.setattr(
      cpu.logging, 'warning', lambda text, *args: said.append(text % args))
  have = jax.device_count()
  sharding.split_cpu(have)
  sharding.split_cpu(have + 1)
  assert len(said) == 1
  assert f'mesh.cpu_devices={have + 1} has no effect' in said[0]
  assert f'started with {have}' in said[0]
