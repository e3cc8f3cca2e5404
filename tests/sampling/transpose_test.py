"""Tests of decode steps that multiply by transposed matrices."""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import lora, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import quantise
from jaxrl_llm.prepare import programs
from jaxrl_llm.sampling import decode
from jaxrl_llm.sampling.stops import Stops
from tests.helpers import tiny
from tests.helpers.tolerance import decoder, typical

_CFG = ModelConfig(
    vocab_size=13, width=12, layers=2, heads=4, kv_heads=2, head_dim=6,
    mlp_width=20, qkv_bias=True)


def _shapes():
  params = jax.eval_shape(
      lambda: transformer.init(jax.random.key(0), _CFG))
  return lora.join(params, jax.eval_shape(
      lambda: lora.init(jax.random.key(1), params, 3, 'q|down')))


def _params():
  rng = np.random.default_rng(0)
  return jax.tree.map(
      lambda x: 0.4 * rng.standard_normal(x.shape, np.float32), _shapes())


def _steps(params, tokens, transpose):
  """Returns the logits [S, V] after two decode steps."""
  layers = decode.split(params['layers'], _CFG, transpose)
  caches = decode.empty(len(tokens), 4, cfg=_CFG, unroll=True)
  for i in range(2):
    cols = decode.kv_cache.columns(
        jnp.int32(i), jnp.full(len(tokens), i), jnp.zeros(len(tokens), int),
        prefix=1, ring=3)
    rope = transformer.rope_table(jnp.full(len(tokens), i), _CFG)
    hidden, caches, _ = decode.step(
        decode.DecodeParams(params, layers), caches, tokens, cols, rope,
        cfg=_CFG)
  return transformer.logits(
      params, hidden, _CFG, few_rows=transpose is not None)


def test_large_matrices_are_transposed_once():
  layers = _params()['layers']
  layers['up'], layers['up_scale'] = quantise.quantise(
      jnp.asarray(layers['up']), quantise.TYPES['int8'], -2)
  # q and o have 288 elements, k and v 144, the MLP's matrices 240.
  got = decode.split(layers, _CFG, 200)
  turned = {'q', 'o', 'gate', 'down'}
  assert {*got[0]} == {*layers} - turned | {f'{name}_t' for name in turned}
  for i, layer in enumerate(got):
    for name, x in layers.items():
      want = x[i].T if name in turned else x[i]
      np.testing.assert_array_equal(
          layer[f'{name}_t' if name in turned else name], want)
  assert {*decode.split(layers, _CFG)[0]} == {*layers}


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_logits_are_the_same(dtype):
  tokens = jnp.array([3, 1, 12])
  run = jax.jit(
      _steps, static_argnums=2,
      compiler_options={'xla_backend_optimization_level': 0})
  params = jax.tree.map(lambda x: jnp.asarray(x, dtype), _params())
  want, got = run(params, tokens, None), run(params, tokens, 1)
  assert got.dtype == want.dtype == jnp.float32
  np.testing.assert_allclose(got, want, rtol=0, atol=typical(
      decoder(_CFG, 4), magnitude=float(jnp.abs(want).max()),
      eps=float(jnp.finfo(dtype).eps)))


def test_weights_are_the_left_operands():
  """The simplifier must not turn the products round: that is slow on CPUs."""
  text = jax.jit(_steps, static_argnums=2).lower(
      _shapes(), jax.ShapeDtypeStruct((3,), jnp.int32), 1).compile().as_text()
  products = re.findall(r'= f32(\[[\d,]+\])\S* (?:dot|fusion)\(', text)
  for shape in '[24,3]', '[12,3]', '[20,3]', '[13,3]':
    assert shape in products


@pytest.mark.parametrize('platform, want', [
    ('cpu', (True, 1 << 20)), ('gpu', (True, None)), ('tpu', (False, None))])
def test_only_cpus_transpose(platform, want):
  mesh = types.SimpleNamespace(
      devices=np.array([types.SimpleNamespace(platform=platform)]),
      shape=dict(data=1, fsdp=1, tensor=1))
  curriculum = types.SimpleNamespace(
      max_requests=4, max_prompts=2, min_count=2)
  made = programs.make_sampler(
      tiny.load(), mesh, _CFG, Stops((0,)), curriculum).sampler
  assert (made.unroll, made.transpose) == want
