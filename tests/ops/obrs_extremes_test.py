"""Tests of OBRS where distributions are far apart, or tokens impossible."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.tolerance import rounding
from tests.ops.obrs_test import (
  acceptance,
  calibration,
  CASES,
  error,
  extreme,
  LAMS,
  log_lam_for_rate,
  log_probs,
  normalizer,
  normalizer_topk,
  obrs_rule,
  weights,
)


def test_results_are_finite():
  """For all triples of levels, and for distributions far apart."""
  new, ref, behaviour = np.reshape(np.meshgrid(
      *[np.float32([0, -1e-3, -5, -40, -80])] * 3), (3, 5, 25))
  everywhere = np.ones(new.shape, bool)
  p, q = np.stack([extreme(gap) for gap in (0.0, 40.0, 80.0)], axis=1)
  ids = np.broadcast_to(np.arange(8), p.shape)
  for lam in LAMS:
    a = acceptance(new, behaviour, lam=lam)
    assert ((0 <= a) & (a <= 1)).all()
    z = normalizer(p, q, lam=lam)
    found = [z, calibration(
        np.full(new.shape, z[-1]), np.ones(new.shape), everywhere)]
    found += [
        normalizer_topk(ids, q, ids, p, lam=lam, logp_b_at_t=q_at_t,
                        logp_t_at_b=p_at_b)
        for p_at_b in (p, None) for q_at_t in (q, None)]
    found += [
        weights(new, ref, behaviour, np.full(new.shape, some), everywhere,
                lam=lam, target=target, clipped=clipped).weight
        for target, clipped in CASES for some in (z[0], z[-1])]
    assert all(np.isfinite(x).all() and x.dtype == np.float32 for x in found)
  assert np.isfinite(log_lam_for_rate(p, q, np.float32([0.05, 0.5, 1]))).all()
  half = [jnp.bfloat16(x) for x in (new, ref, behaviour, np.exp(new))]
  for of in (lambda x: acceptance(*x[:2], lam=1.2), lambda x: normalizer(
      *x[:2], lam=1.2), lambda x: weights(*x, everywhere, lam=1.2).weight):
    got, want = of(half), of([*map(np.float32, half)])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=4 * error(new, ref, behaviour))


def test_log_lam_for_rate():
  """Also where lam is no float32: e^-1000 at a gap of 1000."""
  rng = np.random.default_rng(9)
  pairs = [log_probs(rng, 2, 8, scale=x) for x in (0.01, 0.3, 1, 3)]
  pairs += [extreme(gap) for gap in (0, 10, 60, 1000)]
  pairs += [pair[::-1] for pair in pairs]
  p, q = np.reshape(np.stack(pairs, axis=1), (2, 4, 4, 8))
  rates = np.float32([0.05, 0.2, 0.5, 0.9, 0.99, 1.0])
  logs = np.asarray(log_lam_for_rate(p, q, rates))
  assert logs.shape == (6, 4, 4) and logs.dtype == np.float32
  assert logs.min() < -900
  # The next number, and its exp; Z itself, a sum, twice: for the last lam that
  # accepts enough and the first that does not.
  rtol = 2 * (error(p, q, logs[..., None], axis=-1) + rounding(8))
  shifted = np.float64(p) - logs[..., None]
  z = obrs_rule(shifted, q, 1.0)[1]
  rates = rates[:, None, None]
  assert (np.abs(z - rates) <= rtol * rates).all()
  # |d log Z / d log lam| <= 1, so lams differ as much as rates: by 1% at least.
  assert (np.diff(logs, axis=0) < 0).all()


@pytest.mark.parametrize('target, clipped', CASES)
def test_tokens_without_probability(target, clipped):
  """None that the target never writes is kept, and no weight is NaN."""
  none = np.float32(-np.inf)
  new, ref, behaviour = np.float32([
      [none, none, none, -1], [none, none, -1, none], [none, -1, none, none]])
  p = new if target == 'p_new' else ref
  np.testing.assert_array_equal(
      acceptance(p, behaviour, lam=0.8), np.isfinite(p))
  row = (x[None] for x in (new, ref, behaviour, np.full(4, np.float32(0.5))))
  got = weights(
      *row, np.ones((1, 4), bool), lam=0.8, target=target, clipped=clipped)
  assert np.isfinite(got.weight).all()
