"""Test that `score` and `update` compute the same log-probs, within a bound."""

import dataclasses

import numpy as np
import pytest

from benchmarks import score_update

SETTINGS = (90, None), (400, 16)  # several lists, and one
LENGTHS = 30, 48, 90


@pytest.mark.parametrize('dtype', ('bfloat16', 'float32'))
def test_score_and_update_differ_by_roundings(dtype):
  """Every pair of settings, as in the benchmark, on short rows."""
  cfg = dataclasses.replace(
      score_update.model(dtype), width=64, vocab_size=256)
  out = score_update.differences(cfg, SETTINGS, LENGTHS)
  assert out.shape == (2, 2, 3, 2) and np.isfinite(out).all()
  largest, rms = np.moveaxis(out, -1, 0)
  assert largest.max() <= score_update.bound(cfg)
  # `largest` sees only one sign, the root mean square both.
  assert rms.max() <= score_update.bound(cfg) / 2
