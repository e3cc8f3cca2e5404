"""Tests of decoding with 8-bit weights and caches, against dense arithmetic.

The twin multiplies the same rounded numbers by their scales, and attends over
whole rows at once.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.models import attention, lora, transformer
from jaxrl_llm.ops import quantise
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling import kv_cache
from jaxrl_llm.sampling.generate import SamplerConfig
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from tests.helpers import devices
from tests.helpers.tolerance import decoder, typical
from tests.sampling import generate_test as plain
from tests.sampling import sharded_test


@functools.cache
def _quantised(family, kind):
  """Returns a family's sampling weights."""
  params = plain._params(plain._FAMILIES[family])
  return sharding.to_sampling(
      params, sharding.make_mesh(1, 1, 1), jnp.float32, kind=kind).apply(params)


def _dense(params):
  """Returns the tree with every matrix multiplied by its scales."""
  def tree(node, axis):
    return {
        name: tree(x, -2) if isinstance(x, dict) else
        quantise.dequantise(x, node[f'{name}_scale'], axis)
        if f'{name}_scale' in node else x
        for name, x in node.items() if not name.endswith('_scale')}

  return tree(params, -1)


@functools.partial(jax.jit, static_argnames=('cfg', 'kv'), compiler_options={
    'xla_backend_optimization_level': 0})
def _logits(params, row, prompt, *, cfg, kv):
  """Computes the logits [S, V] of a row, whose prompt is not quantised.

  Keys and values at all positions are rounded, but the prompt's tokens before
  its last attend to exact ones.
  """
  position = jnp.arange(len(row))
  rope = transformer.rope_table(position, cfg)
  back = position[:, None] - position
  x = transformer.embed(params, row, cfg)
  for i, window in enumerate(cfg.layer_windows()):
    def attend(q, k, v, window=window):
      def attended(k, v):
        k, v = (jnp.repeat(y, cfg.heads // cfg.kv_heads, 1) for y in (k, v))
        s = attention.softcap(
            jnp.einsum('qnh,knh->nqk', q, k) * cfg.scale, cfg.attention_softcap)
        s = jnp.where((back >= 0) & (back < window), s, -jnp.inf)
        return jnp.einsum('nqk,knh->qnh', jax.nn.softmax(s), v)

      def rounded(y):
        if kv is None:
          return y
        return quantise.dequantise(
            *quantise.quantise(y, quantise.TYPES[kv], -1), -1)

      return jnp.where(
          (position < prompt - 1)[:, None, None], attended(k, v),
          attended(rounded(k), rounded(v))), None

    layer = jax.tree.map(lambda w, i=i: w[i], params['layers'])
    x, *_ = transformer.block(x, layer, rope, attend, cfg)
  return transformer.logits(
      params, transformer.rms_norm(x, params['norm'], cfg), cfg)


def _gaps(family, weights, kv, rollouts):
  """Returns |log-prob of sampler - of twin| of every sampled token."""
  cfg, prompts = plain._FAMILIES[family], plain._prompts()
  params, gaps = _dense(_quantised(family, weights)), []
  for i, p in enumerate(plain._requests().prompt):
    prompt, n = int(prompts.length[p]), int(rollouts.length[i])
    row = np.zeros(6 + plain._T, np.int32)
    row[:prompt] = prompts.tokens[p, :prompt]
    row[prompt:prompt + n] = rollouts.tokens[i, :n]
    logits = _logits(params, row, prompt, cfg=cfg, kv=kv)
    want = jax.nn.log_softmax(logits)[
        np.arange(prompt - 1, prompt + n - 1), row[prompt:prompt + n]]
    gaps += [*np.abs(want - rollouts.logprobs[i, :n])]
  return np.array(gaps)


OPTIONS = (
    ('gemma2', 'int8', 'float8', dict(
        slots=3, chunk=4, unroll=True, transpose=1)),
    ('llama3', 'float8', 'int8', dict(
        slots=3, chunk=2, prefill_prompts=2, prefill_lengths=(3,),
        share_prompts=True)),
    ('qwen3', None, 'float8', dict(
        unroll=True, prefill_prompts=1, share_prompts=True)),
    ('qwen2', 'int8', 'int8', {}))


@pytest.mark.parametrize('family, weights, kv, options', OPTIONS, ids=str)
def test_logprobs_are_those_of_dense_arithmetic(family, weights, kv, options):
  cfg = plain._FAMILIES[family]
  rollouts, stats = plain._jitted(cfg, kv=kv, **options)(
      _quantised(family, weights),
      Queue(plain._prompts(), plain._requests(), plain._R), plain._KEY,
      SamplingParams(), 12)
  assert int(stats.busy) == rollouts.length.sum() > plain._R
  gaps = _gaps(family, weights, kv, rollouts)
  # Where a key or value lies close to the middle of two numbers, programs may
  # round it to different ones: this changes what follows by a rounding to 8
  # bits, but happens to few.
  exact = gaps < typical(decoder(cfg, 6 + plain._T), cfg.vocab_size)
  assert exact.mean() > 0.75 and gaps.max() < 0.1
  if kv == 'int8':  # Exact arithmetic is not close.
    assert _gaps(family, None, None, rollouts).mean() > 10 * gaps.mean()


def test_a_cache_is_rounded_where_it_is_stored():
  """A prefix and a decode step give the same columns as all at once."""
  rng = np.random.default_rng(0)
  k, v = rng.standard_normal((2, 3, 2, 6, 4)).astype(np.float32)
  whole = kv_cache.make_cache(
      k, v.swapaxes(-1, -2), quantise.TYPES['int8'])
  for column in range(4):
    one = kv_cache.make_cache(
        k[..., column:column + 1], v.swapaxes(-1, -2)[..., column, :][
            :, :, None], quantise.TYPES['int8'])
    np.testing.assert_array_equal(one.k[..., 0], whole.k[..., column])
    np.testing.assert_array_equal(one.v[:, :, 0], whole.v[:, :, column])
    for name in ('k_scale', 'v_scale'):
      np.testing.assert_array_equal(
          getattr(one, name)[..., 0], getattr(whole, name)[..., column])


def test_merging_adapters_dequantises():
  params = _quantised('qwen3', 'int8')
  layers = params['layers']
  a, b = (0.1 * jnp.ones(shape) for shape in ((2, 12, 3), (2, 3, 24)))
  merged = lora.merge({**params, 'layers': {
      **layers, 'q_lora_a': a, 'q_lora_b': b}})['layers']
  want = _dense(params)['layers']
  assert {*merged} == {*want}
  np.testing.assert_allclose(merged['q'], want['q'] + 0.03, rtol=1e-5)
  np.testing.assert_array_equal(merged['down'], want['down'])


def test_sums_before_the_scale_do_not_overflow_float16():
  x = jnp.full((1, 64), 100.0, jnp.float16)
  layer = dict(zip(('q', 'q_scale'), quantise.quantise(
      jnp.full((64, 2), 0.01), quantise.TYPES['int8'], 0)))
  np.testing.assert_allclose(
      transformer._dense(x, layer, 'q'), 64.0, rtol=2.0 ** -9)


def _on_meshes(shapes):
  """Returns tokens and log-probs of the same requests on meshes."""
  results, cfg = [], sharded_test._CFG
  shape_of = jax.eval_shape(
      functools.partial(transformer.init, cfg=cfg), jax.random.key(0))
  rng = np.random.default_rng(0)
  params = jax.tree.map(
      lambda x: 0.4 * rng.standard_normal(x.shape, np.float32), shape_of)
  for shape in shapes:
    count = shape[0] * shape[1]
    mesh = sharding.make_mesh(*shape, jax.devices()[:count * shape[2]])
    weights = sharding.to_sampling(shape_of, mesh, jnp.float32, kind='int8')
    rows, whole = sharding.rows(mesh), sharding.replicated(mesh)
    sampler = SamplerConfig(slots=5, max_response=plain._T, kv='int8')
    rollouts, _ = jax.jit(
        functools.partial(
            generate_lib.sharded_generate, mesh, cfg=cfg, sampler=sampler),
        compiler_options={'xla_backend_optimization_level': 0})(
            weights.apply(jax.device_put(params, sharding.shardings(
                params, sharding.TRAIN_RULES, mesh))),
            jax.device_put(jax.tree.map(
                lambda x, count=count: np.concatenate([x] * count),
                Queue(plain._prompts(), plain._requests(),
                      np.int32([plain._R]))), rows),
            *jax.device_put((plain._KEY, SamplingParams(), np.int32(0)), whole))
    results.append([np.asarray(x)[:plain._R].tolist() for x in (
        rollouts.tokens, rollouts.logprobs)])
  return results


def test_a_split_vocabulary_has_its_scales():
  (tokens, one), (others, other) = map(
      lambda x: tuple(map(np.array, x)),
      devices.run(_on_meshes, [[1, 1, 1], [1, 1, 2]], devices=2))
  assert (tokens == others).mean() > 0.9
  exact = np.abs(one - other) < typical(
      decoder(sharded_test._CFG, 6 + plain._T), 16, magnitude=4)
  assert exact.mean() > 0.75
