"""Tests of the corrections from behaviour to old policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import importance
from tests.helpers.tolerance import FUNCTION, rounding
from tests.reference import policy_losses as twin

LIMITS = {'none': {}, 'identity': {}, 'tis': dict(cap=2.0),
          'icepop': dict(low=0.5, cap=2.0), 'sequence_tis': dict(cap=2.0),
          'geometric_mask': dict(low=0.5, cap=2.0)}


@pytest.mark.parametrize('name', importance.CORRECTIONS)
def test_equals_the_twin(name):
  rng = np.random.default_rng(0)
  log_ratio = rng.normal(size=(5, 7)).astype(np.float32)
  mask = rng.random((5, 7)) < 0.6
  got = importance.CORRECTIONS[name](log_ratio, mask, **LIMITS[name])
  # An exp; that of a row's sum has the sum's error.
  rtol = rounding(FUNCTION) + rounding(
      log_ratio.shape[1], magnitude=np.abs(log_ratio).sum(1).max())
  np.testing.assert_allclose(
      got, twin.correction(name, np.float64(log_ratio), mask), rtol=rtol)


def test_golden():
  # x = 1/4, 1, 4; their product is 1.
  # log 4 is less than 2: three such are rounded and added up.
  log_ratio, mask = np.log([[0.25, 1, 4]]), np.ones((1, 3), bool)
  rtol = rounding(FUNCTION) + rounding(3, magnitude=2 * 2)
  for name, want in (
      ('none', [[1, 1, 1]]), ('identity', [[0.25, 1, 4]]),
      ('tis', [[0.25, 1, 2]]), ('icepop', [[0, 1, 0]]),
      ('sequence_tis', [[1, 1, 1]]), ('geometric_mask', [[1, 1, 1]])):
    got = importance.CORRECTIONS[name](log_ratio, mask, **LIMITS[name])
    np.testing.assert_allclose(got, want, rtol=rtol)
  # Without the last token the product is 1/4.
  got = importance.sequence_tis(log_ratio, mask & [1, 1, 0], cap=2.0)
  np.testing.assert_allclose(got, [[0.25, 0.25, 1]], rtol=rtol)
  # Its geometric mean is 1/2.
  for low, want in (.49, 1), (.51, 0):
    got = importance.geometric_mask(log_ratio, mask & [1, 1, 0], low=low, cap=2)
    np.testing.assert_array_equal(got, [[want, want, 1]])


@pytest.mark.parametrize('name', importance.CORRECTIONS)
def test_is_a_constant_weight(name):
  def total(log_ratio):
    mask = jnp.ones_like(log_ratio)
    f = importance.CORRECTIONS[name]
    return jnp.sum(f(log_ratio, mask, **LIMITS[name]))

  x = jnp.float32([[0.1, -0.2, 300.0], [-300.0, 0.3, jnp.inf]])
  assert jnp.isfinite(total(x))
  assert not np.any(jax.grad(total)(x))
