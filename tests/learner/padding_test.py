"""Tests of the share of real FLOPs against counts token by token."""

import numpy as np
import pytest

from jaxrl_llm.learner import packing, padding
from jaxrl_llm.models.config import ModelConfig
from tests.models.flops_test import by_hand
from tests.ops.ragged_test import facts_of, L, T

MODEL = ModelConfig(
    vocab_size=7, width=5, layers=3, heads=4, kv_heads=2, head_dim=6,
    mlp_width=11, window=3)


def matmuls(columns, predicted):
  """FLOPs of tokens without attention."""
  alone = by_hand(MODEL, 1, 0) - MODEL.layers * MODEL.heads * 4 * MODEL.head_dim
  return columns * alone + predicted * 2 * MODEL.vocab_size * MODEL.width


def scores(pairs):
  """FLOPs of pairs of tokens in a layer."""
  return pairs * MODEL.heads * 4 * MODEL.head_dim


def rows_of(columns):
  """FLOPs of attention over a row of so many columns, in all layers."""
  return by_hand(MODEL, columns, 0) - matmuls(columns, 0)


@pytest.mark.parametrize('chunks', [False, True])
@pytest.mark.parametrize('tokens, shards', [(1, 1), (25, 2), (60, 3), (400, 1)])
def test_against_a_count_by_hand(tokens, shards, chunks):
  prompt, before, length = facts_of(3, 24, 8)
  sizes = packing.choose(
      tokens=tokens, max_prompt=L, max_response=T, samples=3,
      rows=24 // shards, chunks=chunks)
  plan = packing.plan(prompt, before, length, shards=shards, sizes=sizes)
  n, real, computed = plan.sizes.columns, 0, 0
  for m in range(int(plan.count)):
    for f in range(shards):
      first, number = plan.first[m, f], plan.rows[m, f]
      rows = plan.order[f, first:first + number]
      for _, b in {(prompt[i], before[i]) for i in rows}:
        real += by_hand(MODEL, b, 0)
      for i in rows:
        real += by_hand(MODEL, before[i] + length[i], length[i]) - by_hand(
            MODEL, before[i], 0)
      computed += matmuls(n, min(n, plan.sizes.places * T))
      if chunks:
        one = plan.sizes
        computed += MODEL.layers * scores(
            n * (one.chunk + one.back + one.reach))
        continue
      computed += plan.sizes.firm * rows_of(L + T)
      if number > plan.sizes.firm:
        computed += (plan.sizes.places - plan.sizes.firm) * rows_of(
            L + plan.sizes.short)
  found = padding.real_flops(
      MODEL, plan, before, length, max_prompt=L, max_response=T)
  assert found == pytest.approx(real / computed)
  assert 0 < found < 1


def test_of_no_row_is_none():
  sizes = packing.choose(
      tokens=60, max_prompt=L, max_response=T, samples=3, rows=24, chunks=True)
  assert padding.real_flops(
      MODEL, packing.nothing(sizes[-1], rows=24, shards=2), np.zeros(24),
      np.zeros(24), max_prompt=L, max_response=T) == 0
