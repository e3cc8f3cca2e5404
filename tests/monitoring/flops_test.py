"""Tests of model FLOPs against XLA's own count and counts by hand."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig, PRESETS
from jaxrl_llm.monitoring import flops
from jaxrl_llm.rollout import Asked
from jaxrl_llm.storage import compiled
from jaxrl_llm.types import Prompts, Requests

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
    hidden, _ = transformer.forward(params, tokens, cfg=cfg, unroll=cfg.layers)
    return transformer.logits(params, hidden, cfg)

  shapes = jax.eval_shape(
      lambda key: transformer.init(key, cfg), jax.random.key(0))
  compiled = jax.jit(run).lower(
      shapes, jax.ShapeDtypeStruct((b, s), jnp.int32)).compile()
  counted = compiled.cost_analysis()['flops']
  unseen = 4 * cfg.heads * cfg.head_dim * cfg.layers * b * s * (s - 1) / 2
  ours = flops.forward(cfg, np.full(b, s)) + unseen
  assert ours < counted < 1.1 * ours


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_matmul_rate(dtype):
  rate = flops.matmul_rate(dtype)
  assert 1e9 < rate < 1e18
  assert flops.matmul_rate(dtype) == rate  # measured once


def test_the_matmul_rate_is_kept_for_a_week(tmp_path, monkeypatch):
  measured, now = [], [1e9]

  def measure(dtype):
    measured.append(dtype)
    return 1e12 + len(measured)

  def rate(dtype='float32'):  # as another process would have it
    flops.matmul_rate.cache_clear()
    return flops.matmul_rate(dtype) - 1e12

  monkeypatch.setattr(flops, '_measured_rate', measure)
  monkeypatch.setattr(time, 'time', lambda: now[0])
  monkeypatch.setattr(compiled, 'folder', lambda: tmp_path)
  assert [rate(), rate(), rate('bfloat16'), rate()] == [1, 1, 2, 1]
  assert measured == ['float32', 'bfloat16']
  now[0] += 7 * 86_400 - 1
  assert rate() == 1
  now[0] += 1
  assert [rate(), rate()] == [3, 3]
  now[0] -= 2  # measured in the future: another clock
  assert [rate(), rate()] == [4, 4]
  for damaged in ('', '[]', '{"rate": 1e12}', '{"rate": 0, "time": 999999999}'):
    for file in tmp_path.iterdir():
      file.write_text(damaged)
    before = len(measured)
    assert rate() == rate() == before + 1
  for folder in (None, tmp_path / 'missing'):  # nothing is kept
    monkeypatch.setattr(compiled, 'folder', lambda folder=folder: folder)
    assert rate() < rate()
  flops.matmul_rate.cache_clear()


def test_peak_memory_is_in_bytes():
  before = flops.peak_memory()
  ballast = np.ones(10_000_000)  # 80 MB
  assert 80e6 < flops.peak_memory() < 1e12
  assert flops.peak_memory() >= before
  del ballast


def test_a_step_is_sampled_once_and_trained_on_in_each_epoch():
  prompts = Prompts(
      tokens=np.zeros((2, 5)), length=np.array([5, 3]),
      problem_id=np.arange(2))
  asked = Asked([], prompts, Requests(
      prompt=np.array([0, 0, 1]), sample=None, budget=None))
  response = np.array([4, 2, 6])
  first = np.array([5, 3]), np.array([4, 6])
  second = np.array([5]), np.array([2])
  model = PRESETS['tiny']
  for epochs, frozen in ((1, False), (3, True)):
    # The first round leaves a row out; the second comes back to it.
    assert flops.of_step(
        model, asked, response, [first, second], epochs=epochs,
        frozen=frozen) == dict(
            sample=flops.sample(
                model, prompts.length, np.array([5, 5, 3]), response),
            update=epochs * flops.update(model, *first, frozen=frozen)
            + epochs * flops.update(model, *second, frozen=frozen))
  nothing = Asked([], jax.tree.map(lambda x: x[:0], prompts), Requests(
      prompt=np.zeros(0, int), sample=None, budget=None))
  assert flops.of_step(
      model, nothing, response[:0], [], epochs=1, frozen=False) == dict(
          sample=0, update=0)
