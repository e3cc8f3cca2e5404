"""Tests of model FLOPs against XLA's own count and counts by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.models import flops, transformer
from jaxrl_llm.models.config import ModelConfig, PRESETS

CFG = ModelConfig(
    vocab_size=7, width=5, layers=3, heads=4, kv_heads=2, head_dim=6,
    mlp_width=11, window=3)


def by_hand(cfg, length, predicted):
  """Counts FLOPs token by token and matrix by matrix."""
  total = 0
  for i in range(length):
    for window in cfg.layer_windows():
      for rows, columns in (
          (cfg.width, cfg.heads * cfg.head_dim),
          (cfg.width, cfg.kv_heads * cfg.head_dim),
          (cfg.width, cfg.kv_heads * cfg.head_dim),
          (cfg.heads * cfg.head_dim, cfg.width),
          (cfg.width, cfg.mlp_width), (cfg.width, cfg.mlp_width),
          (cfg.mlp_width, cfg.width)):
        total += 2 * rows * columns
      for j in range(i + 1):
        if i - j < window:  # a score, and a share of a value, for each head
          total += cfg.heads * (2 * cfg.head_dim + 2 * cfg.head_dim)
  return total + predicted * 2 * cfg.vocab_size * cfg.width


def test_forward_token_by_token():
  lengths, predicted = [0, 1, 2, 3, 4, 9], [0, 1, 0, 2, 4, 5]
  for cfg in (CFG, dataclasses.replace(CFG, window=None)):
    expected = sum(by_hand(cfg, *pair) for pair in zip(lengths, predicted))
    assert flops.forward(
        cfg, np.array(lengths), np.array(predicted)) == expected
    assert flops.forward(cfg, np.array([4]), 0) == by_hand(cfg, 4, 0)
    assert flops.forward(cfg, np.array([4])) == by_hand(cfg, 4, 4)


def test_update_and_sample():
  prompt, response = np.array([3, 3, 5]), np.array([2, 0, 4])
  assert flops.update(CFG, prompt, response) == 3 * (
      by_hand(CFG, 5, 2) + by_hand(CFG, 9, 4))
  # Two requests share the first prompt; one was not served.
  expected = by_hand(CFG, 3, 0) + by_hand(CFG, 5, 0)
  expected += by_hand(CFG, 5, 2) - by_hand(CFG, 3, 0)
  expected += by_hand(CFG, 9, 4) - by_hand(CFG, 5, 0)
  assert flops.sample(CFG, np.array([3, 5]), prompt, response) == expected


def test_forward_against_the_compiler():
  """XLA counts all pairs of tokens, and a few more for norms and softmax."""
  cfg = dataclasses.replace(PRESETS['tiny'], layers=2, vocab_size=512)
  b, s = 2, 32

  def run(params, tokens):
    hidden, _ = transformer.forward(
        params, tokens, cfg=cfg,
        execution=dataclasses.replace(transformer.PLAIN, unroll=cfg.layers))
    return transformer.logits(params, hidden, cfg)

  shapes = jax.eval_shape(
      lambda key: transformer.init(key, cfg), jax.random.key(0))
  compiled = jax.jit(run).lower(
      shapes, jax.ShapeDtypeStruct((b, s), jnp.int32)).compile()
  counted = compiled.cost_analysis()['flops']
  unseen = 4 * cfg.heads * cfg.head_dim * cfg.layers * b * s * (s - 1) / 2
  ours = flops.forward(cfg, np.full(b, s)) + unseen
  assert ours < counted < 1.1 * ours
