"""Tests of the decoder against transformers' torch models of each family."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import attention, transformer
from jaxrl_llm.models.config import ModelConfig
from tests.helpers import families
from tests.helpers.tolerance import decoder, rounding, typical


@functools.partial(jax.jit, static_argnames=('cfg', 'remat', 'unroll'))
def _logits(params, tokens, cfg, **options):
  hidden, _ = transformer.forward(
      params, tokens, cfg=cfg,
      execution=dataclasses.replace(transformer.PLAIN, **options))
  return transformer.logits(params, hidden, cfg)


@pytest.mark.parametrize('name', families.NAMES)
def test_logits_equal_transformers(name):
  cfg, params, model = families.pair(name)
  shapes = jax.eval_shape(lambda k: transformer.init(k, cfg),
                          jax.random.key(0))
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
  tokens = families.tokens()
  want = families.torch_logits(model, tokens)
  got = np.asarray(_logits(params, tokens, cfg))
  scale = np.abs(want).max()
  assert scale > 1.0
  np.testing.assert_allclose(
      got, want, rtol=0,
      atol=rounding(decoder(cfg, tokens.shape[1]), magnitude=scale))


@pytest.mark.parametrize('name, change', [
    ('qwen2', dict(rope_theta=1e4)),
    ('llama3', dict(rope_scaling=None)),
    ('gemma2', dict(window=None)),
    ('gemma2', dict(attention_softcap=None)),
    ('gemma2', dict(query_scale=None)),
    ('gemma3', dict(window_rope_theta=None)),
    ('gemma3', dict(rope_divisor=1.0)),
    ('gemma3', dict(full_every=2)),
])
def test_every_feature_matters_in_the_comparison(name, change):
  """Each switch moves the logits by far more than the tolerance above."""
  cfg, params, _ = families.pair(name)
  tokens = families.tokens()
  a = _logits(params, tokens, cfg)
  b = _logits(params, tokens, dataclasses.replace(cfg, **change))
  assert float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(a))) > 1e-2


@pytest.mark.parametrize('name', ('qwen3', 'gemma2'))
def test_right_padding_is_inert(name):
  cfg, params, _ = families.pair(name)
  tokens = families.tokens(length=40)
  other = tokens.copy()
  other[:, 25:] = families.tokens(length=15, seed=1)
  a = _logits(params, tokens, cfg)[:, :25]
  np.testing.assert_array_equal(a, _logits(params, other, cfg)[:, :25])
  short = _logits(params, tokens[:, :25], cfg)
  np.testing.assert_allclose(
      a, short, rtol=0,
      atol=rounding(decoder(cfg, 40), magnitude=np.abs(short).max()))


@pytest.mark.parametrize('remat', transformer.REMAT[1:])
def test_remat_and_unroll_change_nothing(remat):
  cfg, params, _ = families.pair('gemma2')
  tokens = families.tokens(length=20)

  def loss(params, **options):
    return jnp.mean(jnp.sin(_logits(params, tokens, cfg, **options)))

  grad = jax.jit(jax.grad(loss), static_argnames=('remat', 'unroll'))
  want, got = grad(params), grad(params, remat=remat, unroll=2)
  # Forward, back to states and to weights, whose gradients are sums over the
  # tokens.
  counts = 3 * decoder(cfg, 20), tokens.size
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, rtol=0, atol=typical(*counts, magnitude=np.abs(b).max())),
      got, want)


SMALL = ModelConfig(
    vocab_size=16, width=64, layers=3, heads=4, kv_heads=2, head_dim=64,
    mlp_width=256)


def _backward(remat, implementation):
  """Traces the gradient of a model; its sizes affect only the memory."""
  def loss(params, tokens):
    hidden, _ = transformer.forward(
        params, tokens, cfg=SMALL,
        execution=dataclasses.replace(
            transformer.PLAIN, attention=implementation, remat=remat))
    return jnp.sum(hidden ** 2)

  params = jax.eval_shape(
      lambda: transformer.init(jax.random.key(0), SMALL))
  return jax.jit(jax.grad(loss)).trace(
      params, jax.ShapeDtypeStruct((2, 256), jnp.int32))


# Beside forward and backward: the attention kernel, and the products with q, k,
# v, o, gate and up; nothing in backward needs that with down.
@pytest.mark.parametrize('remat, kernels, products', [
    ('full', 1, 6), ('attention', 0, 6), ('matmuls', 0, 0)])
def test_what_backward_computes_again(remat, kernels, products):
  def counts(remat):
    text = _backward(remat, 'splash').lower(
        lowering_platforms=('tpu',)).as_text()
    return [text.count(word) for word in (
        '@tpu_custom_call', 'stablehlo.dot_general')]

  assert np.subtract(counts(remat), counts('none')).tolist() == [
      kernels, products]


def test_remat_spares_memory():
  none, full, matmuls = (
      _backward(remat, 'xla').lower().compile().memory_analysis()
      .temp_size_in_bytes for remat in ('none', 'full', 'matmuls'))
  assert none > 1.5 * matmuls > 1.5 ** 2 * full


@pytest.mark.parametrize('name', ('qwen2', 'gemma2'))
def test_bfloat16_agrees_on_the_likeliest_token(name):
  cfg, params, _ = families.pair(name)
  tokens = families.tokens(rows=8)
  exact = _logits(params, tokens, cfg)
  rough = _logits(params, tokens, dataclasses.replace(cfg, dtype='bfloat16'))
  assert rough.dtype == jnp.float32
  agree = jnp.argmax(exact, -1) == jnp.argmax(rough, -1)
  assert float(jnp.mean(agree)) > 0.9


def test_kept_keys_and_values_are_those_of_each_block():
  """The forward pass written as a loop over blocks, collecting k and v."""
  cfg, params, _ = families.pair('qwen3')
  tokens = jnp.asarray(families.tokens(length=12))
  rope = transformer.rope_table(jnp.arange(12)[None], cfg)

  @jax.jit
  def block(x, layer):
    x, kv, _ = transformer.block(x, layer, rope, lambda q, k, v: (
        attention.causal_attention(q, k, v, scale=cfg.scale), (k, v)), cfg)
    return x, kv

  x, kept = transformer.embed(params, tokens, cfg), []
  for i in range(cfg.layers):
    x, kv = block(x, jax.tree.map(lambda p: p[i], params['layers']))
    kept.append(kv)
  want = (transformer.rms_norm(x, params['norm'], cfg),
          transformer.LayerOutputs(tuple(jnp.stack(a) for a in zip(*kept))))
  got = transformer.forward(params, tokens, cfg=cfg, keep_kv=True)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, rtol=0,
      atol=rounding(decoder(cfg, 12), magnitude=np.abs(b).max())), got, want)


def test_matmul_gradient_is_autodiff_s_and_stays_float32():
  x, g = jax.random.normal(jax.random.key(0), (2, 3, 5, 4))
  w = jax.random.normal(jax.random.key(1), (4, 4))
  want = jax.vjp(jnp.matmul, x, w)[1](g)
  got = jax.vjp(transformer.matmul, x, w)[1](g)
  # Sums of 15 terms at most; those of 16 bits have exact products in float32.
  close = lambda a, b: np.testing.assert_allclose(
      a, b, rtol=0, atol=rounding(15, magnitude=np.abs(b).max()))
  jax.tree.map(close, got, want)
  half = jnp.bfloat16
  y, pull = jax.vjp(transformer.matmul, x.astype(half), w)
  d_x, d_w = pull(g.astype(half))
  assert (y.dtype, d_x.dtype, d_w.dtype) == (half, half, jnp.float32)
  # bfloat16 inputs, but no rounding of the result to bfloat16.
  exact = jnp.einsum('bsd,bsf->df', *(
      a.astype(half).astype(jnp.float32) for a in (x, g)))
  close(d_w, exact)


def test_init_statistics():
  """Standard deviations as documented; norms start as the identity."""
  cfg = ModelConfig(
      vocab_size=300, width=96, layers=4, heads=6, kv_heads=2, head_dim=16,
      mlp_width=200, qkv_bias=True, qk_norm=True, post_norms=True,
      tie_embeddings=False)
  params = jax.jit(functools.partial(transformer.init, cfg=cfg))(
      jax.random.key(0))
  residual = (2 * cfg.layers) ** -0.5
  want = dict(
      q=96 ** -0.5, k=96 ** -0.5, v=96 ** -0.5, o=96 ** -0.5 * residual,
      gate=96 ** -0.5, up=96 ** -0.5, down=200 ** -0.5 * residual)
  for name, std in want.items():
    matrix = np.asarray(params['layers'][name])
    assert abs(matrix.std() / std - 1) < 0.03, name
    assert abs(matrix.mean()) < 0.03 * std, name
  for name in ('embed', 'unembed'):
    assert abs(np.asarray(params[name]).std() * 96 ** 0.5 - 1) < 0.03
  assert not np.array_equal(params['embed'], params['unembed'])
  for name, leaf in params['layers'].items():
    assert leaf.dtype == jnp.float32
    if name.endswith('norm'):
      assert np.all(np.asarray(leaf) == 1.0), name
    if name.endswith('bias'):
      assert np.all(np.asarray(leaf) == 0.0), name
  assert np.all(np.asarray(params['norm']) == 1.0)
  plus_one = dataclasses.replace(cfg, width=8, layers=1, norm_plus_one=True)
  plus_one = transformer.init(jax.random.key(0), plus_one)
  assert np.all(np.asarray(plus_one['layers']['attn_norm']) == 0.0)


@pytest.mark.parametrize('activation', ['silu', 'gelu_tanh'])
def test_the_gradient_of_mlp_units_keeps_their_two_factors(activation):
  x = jax.ShapeDtypeStruct((4, 6), jnp.float32)
  units = lambda gate, up: transformer._gated(gate, up, activation)
  _, back = jax.eval_shape(functools.partial(jax.vjp, units), x, x)
  assert [leaf.shape for leaf in jax.tree.leaves(back)] == [(4, 6)] * 2
