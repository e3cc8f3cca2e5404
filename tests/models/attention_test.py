"""Tests of splash attention in Pallas's interpreter against plain attention."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import optimizer as optimizer_lib
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.models import attention, splash, transformer
from jaxrl_llm.models.config import ModelConfig, PRESETS
from jaxrl_llm.ops import ragged
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.types import LearnerBatch, Prompts, Requests
from tests.helpers import devices, learners
from tests.helpers.tolerance import decoder, FUNCTION, rounding, typical


def both(s, heads, groups, h, dtype='float32', **options):
  """Returns output and gradients of splash and then of plain attention."""
  noise = np.random.default_rng(0).standard_normal
  q, k, v, direction = (
      jnp.asarray(noise((1, s, n, h), np.float32), dtype)
      for n in (heads, groups, groups, heads))

  @functools.partial(jax.jit, static_argnums=0)
  def run(implementation):
    out, back = jax.vjp(functools.partial(
        attention.causal_attention, implementation=implementation, **options),
        q, k, v)
    return out, *back(direction)

  return run('splash_interpreted'), run('xla')


# Blocks of 128 tokens: 2 to 4 of them, most with padding at the end.
# Backward takes the keys of an even number of blocks two by two; with one
# partial gradient allowed, it is two kernels instead of the fused one.
@pytest.mark.parametrize('s, heads, groups, h, partials, options', [
    (300, 2, 2, 128, 8, dict(scale=0.3)),
    (270, 2, 1, 16, 1, dict(scale=0.7, cap=2.0)),
    (400, 2, 1, 64, 8, dict(scale=0.25, window=150)),
    (270, 2, 1, 32, 1, dict(scale=0.2, window=5, cap=3.0)),
    (256, 2, 1, 256, 8, dict(scale=0.1, window=99, windowed=False)),
])
def test_splash_equals_plain_attention(
    monkeypatch, s, heads, groups, h, partials, options):
  monkeypatch.setattr(splash, 'BLOCK', 128)
  monkeypatch.setattr(splash, 'PARTIALS', partials)
  for got, want in zip(*both(s, heads, groups, h, **options), strict=True):
    assert got.shape == want.shape and got.dtype == want.dtype
    # Sums over head_dim and over tokens, of scores and of values; forward and
    # back.
    np.testing.assert_allclose(
        got, want, rtol=0, atol=rounding(
            2 * h, 4 * s, 4 * FUNCTION, magnitude=np.abs(want).max()))


def test_16_bits_differ_by_roundings():
  for got, want in zip(
      *both(150, 2, 1, 128, 'bfloat16', scale=128 ** -0.5), strict=True):
    assert got.dtype == want.dtype == jnp.bfloat16
    got, want = (np.asarray(x, np.float32) for x in (got, want))
    # bfloat16 has 8 bits: a rounding is off by 2 ** -8 of the value at most, on
    # average by a third of that. Both programs round the probabilities, many of
    # which are summed, and the result.
    assert np.abs(got - want).max() < 2 ** -6 * np.abs(want).max()
    assert np.abs(got - want).mean() < 2 ** -8 * np.abs(want).mean()


MODEL = ModelConfig(
    vocab_size=16, width=16, layers=3, heads=4, kv_heads=2, head_dim=8,
    mlp_width=32, attention_softcap=2.0, window=4, query_scale=0.5)


def _update(implementation, sizes):
  """Returns scores, and parameters after a gradient descent step at rate 1."""
  mesh = sharding.make_mesh(*sizes)
  config = learner_lib.LearnerConfig(
      tokens=1, max_prompt=5, max_response=7, attention=implementation,
      remat='attention')
  learner = learners.make(
      MODEL, config, optimizer_lib.Optimizer(
          optax.sgd(1.0), optax.constant_schedule(1.0)), mesh=mesh)
  rng = np.random.default_rng(0)
  rows = np.full(8, 5, np.int32)
  batch = jax.device_put(
      LearnerBatch(
          tokens=rng.integers(0, 16, (8, 12), np.int32), prompt_length=rows,
          response_length=rng.integers(1, 8, 8, np.int32),
          mask=np.ones((8, 7), bool),
          behaviour_logprobs=np.full((8, 7), -2, np.float32),
          advantages=rng.standard_normal(8, np.float32)),
      sharding.rows(mesh))
  loss = jax.tree.map(np.float32, update_lib.LossParams(
      temperature=1, entropy_bonus=0, kl_coef=0, budget=7,
      objective=dict(clip_low=0.2, clip_high=0.2), importance={}))
  params = transformer.init(jax.random.key(0), MODEL)
  params['layers']['q'] *= 4  # for attention that is far from uniform
  state = learner.init(jax.device_put(
      params, sharding.shardings(params, sharding.TRAIN_RULES, mesh)))
  scores = learners.score(learner, state.params, batch, loss)
  state, metrics = learners.update(learner, state, batch, loss)
  return [np.asarray(x, np.float64).tolist() for x in jax.tree.leaves(
      (scores, state.params, metrics['loss']))]


def test_the_learner_on_eight_devices():
  want = _update('xla', (1, 1, 1))
  got = devices.run(_update, 'splash', (1, 4, 2))
  for a, b in zip(got, want, strict=True):
    # Forward, back to states and to weights; sums over 96 tokens. Parameters
    # before the step are of the order of 1.
    np.testing.assert_allclose(
        a, b, rtol=0, atol=typical(
            3 * decoder(MODEL, 12), 96, magnitude=max(1, np.abs(b).max())))


def _lower():
  """Lowers the gradients for TPUs, with rows split over two axes."""
  mesh = sharding.make_mesh(2, 2, 2)

  def loss(q, k, v, windowed):
    return jnp.sum(attention.causal_attention(
        q, k, v, scale=0.1, cap=50.0, window=300, windowed=windowed,
        implementation='splash'))

  rows = P('data')
  run = jax.jit(jax.shard_map(
      jax.grad(loss, (0, 1, 2)), mesh=mesh, axis_names={'data'},
      check_vma=False, in_specs=(rows, rows, rows, P()), out_specs=rows))
  part = NamedSharding(mesh, P(('data', 'fsdp'), None, 'tensor'))
  row = functools.partial(
      jax.ShapeDtypeStruct, dtype='bfloat16', sharding=part)
  kv = row((8, 700, 2, 64))
  text = run.trace(
      row((8, 700, 4, 64)), kv, kv, jax.ShapeDtypeStruct((), bool)).lower(
          lowering_platforms=('tpu',)).as_text()
  return text.count('@tpu_custom_call')


def test_tpus_run_the_kernels_on_their_own_rows_and_heads():
  """JAX refuses to lower a kernel that the partitioner would have to cut."""
  # Forward and backward, within a window and without.
  assert devices.run(_lower) == 4


def test_the_sampler_prefills_as_it_is_told():
  i32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
  run = functools.partial(
      generate_lib.generate, cfg=MODEL, sampler=generate_lib.SamplerConfig(
          slots=1, max_response=4, prefill_attention='cudnn'))
  params = jax.eval_shape(lambda: transformer.init(jax.random.key(0), MODEL))
  with pytest.raises(ValueError, match="'cudnn' has no soft cap"):
    jax.eval_shape(
        run, params, Queue(
            Prompts(i32((1, 8)), i32((1,)), i32((1,))),
            Requests(i32((1,)), i32((1,)), i32((1,))), 1), jax.random.key(0),
        SamplingParams(), 0)


def test_names_stand_for_implementations():
  tpu, cpu, gpu, old = (
      types.SimpleNamespace(platform=platform, compute_capability=capability)
      for platform, capability in (
          ('tpu', None), ('cpu', None), ('gpu', '9.0'), ('gpu', '7.5')))
  plain = PRESETS['qwen3-1.7b']
  half = dataclasses.replace(plain, dtype='bfloat16')
  for name, device, length, model, want in (
      ('auto', tpu, 4096, half, 'splash'), ('auto', tpu, 64, half, 'xla'),
      ('auto', gpu, 4096, half, 'cudnn'), ('auto', gpu, 768, half, 'xla'),
      ('auto', old, 4096, half, 'xla'), ('auto', cpu, 4096, half, 'xla'),
      ('auto', gpu, 4096, dataclasses.replace(half, dtype='float32'), 'xla'),
      ('auto', gpu, 4096, dataclasses.replace(
          PRESETS['gemma2-2b'], dtype='bfloat16'), 'xla'),
      ('splash', tpu, 64, half, 'splash'), ('cudnn', gpu, 64, half, 'cudnn'),
      ('splash', cpu, 64, half, 'splash_interpreted')):
    assert attention.resolve(name, device, length, model) == want
  with pytest.raises(ValueError, match="'flash' is not known: use one of auto"):
    attention.resolve('flash', tpu, 64, half)


@pytest.mark.parametrize('length', [6, 7])
def test_cudnn_compiles_for_lists_on_each_shard(length, monkeypatch):
  """Lowered for GPUs, with the gradient, where the mesh is abstract."""
  monkeypatch.setattr(
      'jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version',
      lambda: 91900)
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])

  def loss(q, k, v):
    return jnp.sum(attention.causal_attention(
        q, k, v, scale=.1, implementation='cudnn').astype(jnp.float32))

  gradient = functools.partial(ragged.on_each, jax.grad(loss, (0, 1, 2)))
  run = jax.shard_map(
      gradient, mesh=mesh, axis_names={'data'}, in_specs=P('data'),
      out_specs=P('data'), check_vma=False)
  array = lambda heads: jax.ShapeDtypeStruct(
      (2, length, heads, 8), jnp.bfloat16)
  out = jax.eval_shape(functools.partial(
      attention.causal_attention, scale=.1, implementation='cudnn'),
      array(4), array(2), array(2))
  assert out.shape == array(4).shape
  text = jax.jit(run).trace(array(4), array(2), array(2)).lower(
      lowering_platforms=('cuda',)).as_text()
  assert 'cudnn' in text
