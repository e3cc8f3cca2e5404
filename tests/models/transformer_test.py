"""The decoder against transformers' torch models, family by family."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from jaxrl_llm.models import attention, transformer
from jaxrl_llm.models.config import ModelConfig, RopeScaling
from tests.reference import transformers_params

# Odd sizes on purpose: heads * head_dim is not the width, nothing is a power
# of two, and 3 layers see both kinds of a sliding-window pattern.
_SIZES = dict(vocab_size=37, width=30, layers=3, heads=6, kv_heads=2,
              head_dim=10, mlp_width=45)
_HF_SIZES = dict(
    vocab_size=37, hidden_size=30, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, head_dim=10, intermediate_size=45,
    max_position_embeddings=512, pad_token_id=0, bos_token_id=None,
    eos_token_id=None, attn_implementation='eager')
_LLAMA3_ROPE = dict(
    rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=32)


def _rope(theta, **scaling):
  return dict(rope_parameters=dict(
      dict(rope_type='default', rope_theta=theta), **scaling))


def _family(name):
  """(our config, transformers' class, its config) of a tiny model."""
  hf = transformers
  if name == 'qwen2':
    # Qwen2's head width is always hidden_size / heads.
    return (ModelConfig(**{**_SIZES, 'width': 60}, qkv_bias=True,
                        rope_theta=1e6),
            hf.Qwen2ForCausalLM, hf.Qwen2Config(
                **{**_HF_SIZES, 'hidden_size': 60}, tie_word_embeddings=True,
                rms_norm_eps=1e-6, **_rope(1e6)))
  if name == 'qwen3':
    return (ModelConfig(**_SIZES, qk_norm=True, rope_theta=1e6,
                        tie_embeddings=False),
            hf.Qwen3ForCausalLM, hf.Qwen3Config(
                **_HF_SIZES, tie_word_embeddings=False, rms_norm_eps=1e-6,
                **_rope(1e6)))
  if name == 'llama3':
    return (ModelConfig(**_SIZES, rope_theta=10_000.0, norm_eps=1e-5,
                        tie_embeddings=False,
                        rope_scaling=RopeScaling(8.0, 1.0, 4.0, 32)),
            hf.LlamaForCausalLM, hf.LlamaConfig(
                **_HF_SIZES, tie_word_embeddings=False, rms_norm_eps=1e-5,
                **_rope(10_000.0, **_LLAMA3_ROPE)))
  return (ModelConfig(**_SIZES, activation='gelu_tanh', norm_plus_one=True,
                      post_norms=True, scale_embeddings=True,
                      attention_softcap=2.0, logit_softcap=3.0, window=13,
                      query_scale=7.0 ** -0.5),
          hf.Gemma2ForCausalLM, hf.Gemma2Config(
              **_HF_SIZES, tie_word_embeddings=True, rms_norm_eps=1e-6,
              hidden_activation='gelu_pytorch_tanh', sliding_window=13,
              query_pre_attn_scalar=7, attn_logit_softcapping=2.0,
              final_logit_softcapping=3.0, **_rope(10_000.0)))


@functools.lru_cache(None)
def _pair(name):
  """Our config and parameters, and the torch model that they came from."""
  cfg, cls, hf_cfg = _family(name)
  torch.manual_seed(0)
  model = cls(hf_cfg).eval().float()
  with torch.no_grad():
    for parameter in model.parameters():
      # Wide enough that norms, biases and soft caps all matter.
      std = 0.5 if parameter.ndim == 1 else 2 * parameter.shape[-1] ** -0.5
      parameter.add_(std * torch.randn_like(parameter))
  params = jax.tree.map(jnp.asarray, transformers_params.params(model, cfg))
  return cfg, params, model


def _tokens(cfg, rows=2, length=70, seed=0):
  return np.random.default_rng(seed).integers(
      0, cfg.vocab_size, (rows, length), dtype=np.int32)


@functools.partial(jax.jit, static_argnames=('cfg', 'remat', 'unroll'))
def _logits(params, tokens, cfg, **options):
  hidden, _ = transformer.forward(params, tokens, cfg=cfg, **options)
  return transformer.logits(params, hidden, cfg)


FAMILIES = ('qwen2', 'qwen3', 'llama3', 'gemma2')


@pytest.mark.parametrize('name', FAMILIES)
def test_logits_equal_transformers(name):
  cfg, params, model = _pair(name)
  shapes = jax.eval_shape(lambda k: transformer.init(k, cfg),
                          jax.random.key(0))
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
  tokens = _tokens(cfg)
  with torch.no_grad():
    want = model(torch.from_numpy(tokens).long()).logits.numpy()
  got = np.asarray(_logits(params, tokens, cfg))
  scale = np.abs(want).max()
  assert scale > 1.0
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.parametrize('name, change', [
    ('qwen2', dict(rope_theta=1e4)),
    ('llama3', dict(rope_scaling=None)),
    ('gemma2', dict(window=None)),
    ('gemma2', dict(attention_softcap=None)),
    ('gemma2', dict(query_scale=None)),
])
def test_every_feature_matters_in_the_comparison(name, change):
  """Each switch moves the logits by far more than the tolerance above."""
  cfg, params, _ = _pair(name)
  tokens = _tokens(cfg)
  a = _logits(params, tokens, cfg)
  b = _logits(params, tokens, dataclasses.replace(cfg, **change))
  assert float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(a))) > 1e-2


@pytest.mark.parametrize('name', ('qwen3', 'gemma2'))
def test_right_padding_is_inert(name):
  cfg, params, _ = _pair(name)
  tokens = _tokens(cfg, length=40)
  other = tokens.copy()
  other[:, 25:] = _tokens(cfg, length=15, seed=1)
  a = _logits(params, tokens, cfg)[:, :25]
  np.testing.assert_array_equal(a, _logits(params, other, cfg)[:, :25])
  short = _logits(params, tokens[:, :25], cfg)
  np.testing.assert_allclose(a, short, rtol=1e-4, atol=1e-4)


def test_remat_and_unroll_change_nothing():
  cfg, params, _ = _pair('gemma2')
  tokens = _tokens(cfg, length=20)

  def loss(params, **options):
    return jnp.mean(jnp.sin(_logits(params, tokens, cfg, **options)))

  grad = jax.jit(jax.grad(loss), static_argnames=('remat', 'unroll'))
  want, got = grad(params), grad(params, remat=True, unroll=2)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, rtol=1e-4, atol=1e-6), got, want)


@pytest.mark.parametrize('name', ('qwen2', 'gemma2'))
def test_bfloat16_agrees_on_the_likeliest_token(name):
  cfg, params, _ = _pair(name)
  tokens = _tokens(cfg, rows=8)
  exact = _logits(params, tokens, cfg)
  rough = _logits(params, tokens, dataclasses.replace(cfg, dtype='bfloat16'))
  assert rough.dtype == jnp.float32
  agree = jnp.argmax(exact, -1) == jnp.argmax(rough, -1)
  assert float(jnp.mean(agree)) > 0.9


def test_kept_keys_and_values_are_those_of_each_block():
  """The forward pass written as a loop over blocks, collecting k and v."""
  cfg, params, _ = _pair('qwen3')
  tokens = jnp.asarray(_tokens(cfg, length=12))
  rope = transformer.rope_table(jnp.arange(12)[None], cfg)

  @jax.jit
  def block(x, layer):
    return transformer.block(x, layer, rope, lambda q, k, v: (
        attention.causal_attention(q, k, v, scale=cfg.scale), (k, v)), cfg)

  x, kept = transformer.embed(params, tokens, cfg), []
  for i in range(cfg.layers):
    x, kv = block(x, jax.tree.map(lambda p: p[i], params['layers']))
    kept.append(kv)
  want = (transformer.rms_norm(x, params['norm'], cfg),
          tuple(jnp.stack(a) for a in zip(*kept)))
  got = transformer.forward(params, tokens, cfg=cfg, keep_kv=True)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, rtol=1e-4, atol=1e-5), got, want)


def test_matmul_gradient_is_autodiff_s_and_stays_float32():
  x, g = jax.random.normal(jax.random.key(0), (2, 3, 5, 4))
  w = jax.random.normal(jax.random.key(1), (4, 4))
  want = jax.vjp(jnp.matmul, x, w)[1](g)
  got = jax.vjp(transformer.matmul, x, w)[1](g)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, rtol=1e-5, atol=1e-5), got, want)
  half = jnp.bfloat16
  y, pull = jax.vjp(transformer.matmul, x.astype(half), w)
  d_x, d_w = pull(g.astype(half))
  assert (y.dtype, d_x.dtype, d_w.dtype) == (half, half, jnp.float32)
  # bfloat16 inputs, but no rounding of the result to bfloat16.
  exact = jnp.einsum('bsd,bsf->df', *(
      a.astype(half).astype(jnp.float32) for a in (x, g)))
  np.testing.assert_allclose(d_w, exact, rtol=1e-5, atol=1e-5)


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
