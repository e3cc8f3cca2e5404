"""Tests of 8-bit sampling weights: the same on one device and on eight."""

import dataclasses
import hashlib

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.learner import policy as policy_lib
from jaxrl_llm.models import config, experts, transformer
from jaxrl_llm.ops import quantise
from jaxrl_llm.prepare import choices
from tests.helpers import devices, tiny

CFG = dataclasses.replace(
    config.PRESETS['tiny'], width=32, layers=2, head_dim=8, mlp_width=64,
    tie_embeddings=False, experts=8, experts_per_token=2, expert_width=16,
    dense_layers=(1,))
SHAPES = jax.eval_shape(lambda: transformer.init(jax.random.key(0), CFG))
MATRICES = (*transformer.MATRICES, *experts.MATRICES)


def params():
  """Returns parameters whose channels have different magnitudes."""
  rng = np.random.default_rng(0)

  def one(x):
    size = 10.0 ** rng.uniform(-3, 1, x.shape[-1])
    return (size * rng.standard_normal(x.shape)).astype(np.float32)

  return jax.tree.map(one, SHAPES)


def quantised(sizes, kind, learner=None):
  """Returns a mesh's sampling weights and the program that makes them."""
  mesh = sharding.make_mesh(
      *sizes, jax.devices()[:sizes[0] * sizes[1] * sizes[2]])
  learner = sharding.learner_mesh(mesh, learner)
  made = sharding.to_sampling(
      SHAPES, mesh, jnp.bfloat16, kind=kind, learner=learner)
  before = jax.device_put(
      params(), sharding.shardings(SHAPES, sharding.TRAIN_RULES, learner))
  return made.apply(before), made


def digests(cases):
  """Returns a hash of each leaf, and whether layouts are as declared."""
  found = []
  for case in cases:
    got, made = quantised(*case)
    as_declared = jax.tree.map(
        lambda x, want: (x.shape, x.dtype) == (want.shape, want.dtype)
        and x.sharding.is_equivalent_to(want.sharding, x.ndim),
        got, made.result)
    found.append([
        [hashlib.sha1(np.asarray(x).tobytes()).hexdigest()
         for x in jax.tree.leaves(got)], all(jax.tree.leaves(as_declared))])
  return found


def test_the_same_on_any_mesh():
  kinds = [*quantise.TYPES]
  many = devices.run(digests, [
      [[2, 2, 2], kinds[0]], [[1, 2, 4], kinds[0], 1],
      [[1, 4, 2], kinds[1]]])
  one = {kind: digests([[(1, 1, 1), kind]])[0] for kind in kinds}
  for kind, found in zip((kinds[0], kinds[0], kinds[1]), many):
    assert found == one[kind] and found[1]


@pytest.mark.parametrize('kind', quantise.TYPES)
def test_every_matrix_has_a_scale_for_each_output(kind):
  got, _ = quantised((1, 1, 1), kind)
  want = params()
  assert {*got} == {'embed', 'embed_scale', 'unembed', 'unembed_scale', 'norm',
                    'layers'}
  for name in ('embed', 'unembed'):
    values, scale = quantise.quantise(want[name], quantise.TYPES[kind], -1)
    assert got[f'{name}_scale'].shape == (CFG.vocab_size,)
    np.testing.assert_array_equal(got[f'{name}_scale'], scale)
    assert (np.asarray(got[name]) == np.asarray(values)).all()
  layers = got['layers']
  assert {*layers} - {*want['layers']} == {f'{name}_scale' for name in MATRICES}
  for name in MATRICES:
    values, scale = quantise.quantise(
        want['layers'][name], quantise.TYPES[kind], -2)
    *lead, _, outputs = want['layers'][name].shape
    assert layers[f'{name}_scale'].shape == (*lead, outputs)
    np.testing.assert_array_equal(layers[f'{name}_scale'], scale)
    assert (np.asarray(layers[name]) == np.asarray(values)).all()
  for name in {*want['layers']} - {*MATRICES}:  # norms and routers
    np.testing.assert_array_equal(layers[name], want['layers'][name])


def test_scales_are_split_like_the_outputs():
  spec = lambda path: sharding.spec_of(path, sharding.SAMPLE_RULES)
  for name in ('q', 'k', 'v', 'gate', 'up'):
    assert spec(f'layers/{name}_scale') == P(None, 'tensor')
  assert spec('layers/o_scale') == spec('layers/down_scale') == P()
  assert spec('embed_scale') == spec('unembed_scale') == P('tensor')


def large():
  """Returns bytes per device of temporaries and of the result."""
  model = dataclasses.replace(
      config.PRESETS['tiny'], layers=16, width=64, mlp_width=128)
  shapes = jax.eval_shape(lambda: transformer.init(jax.random.key(0), model))
  made = sharding.to_sampling(
      shapes, sharding.make_mesh(1, 4, 2), jnp.bfloat16, kind='int8')
  memory = made.lower().compile().memory_analysis()
  return [memory.temp_size_in_bytes, memory.output_size_in_bytes]


def test_no_second_wide_copy():
  """Results are a byte each, so that one in float32 is four times as large."""
  beside, result = devices.run(large)
  assert beside < result / 2


def test_adapters_keep_their_type():
  run = tiny.load('unused', lora__rank=2, lora__targets='q|down')
  cfg = dataclasses.replace(CFG, dtype='bfloat16')
  made = policy_lib.make_policy(
      cfg, sharding.make_mesh(1, 1, 1), choices.adapters(run))
  trained, frozen = made.split(
      made.init(jax.random.key(0)), jax.random.key(1))
  full, small = (
      made.to_sampling(trained, frozen),
      made.sampling('int8').apply(trained, frozen))
  layers = small['layers']
  assert layers['q'].dtype == small['embed'].dtype == jnp.int8
  for name in ('q_lora_a', 'down_lora_b'):
    assert layers[name].dtype == jnp.bfloat16
    np.testing.assert_array_equal(layers[name], full['layers'][name])
  scale = layers['down_scale'][:, None]
  error = np.abs(layers['down'] * scale - full['layers']['down'])
  assert (error <= scale * 0.501).all()
  assert jax.tree.map(lambda x: (x.shape, x.dtype), small) == jax.tree.map(
      lambda x: (x.shape, x.dtype), made.sampling('int8').result)
