"""Tests of the KL estimators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import kl
from tests.helpers.tolerance import FUNCTION, rounding
from tests.reference import policy_losses as twin

NAMES = sorted(kl.KL_ESTIMATORS)


@pytest.mark.parametrize('name', NAMES)
def test_value_and_gradient_equal_the_twin(name):
  rng = np.random.default_rng(0)
  new, anchor = rng.normal(size=(2, 4, 5)) - 2
  f = lambda new: jnp.sum(kl.KL_ESTIMATORS[name](new, np.float32(anchor)))
  g = lambda new: twin.kl(name, new, anchor).sum()
  value, grad = jax.value_and_grad(f)(jnp.float32(new))
  # Two log-probs are rounded, which shifts d by a rounding of their sum; then
  # come an exp and 4 operations, and a sum over the tokens.
  shift = np.max(np.abs(new) + np.abs(anchor))
  np.testing.assert_allclose(
      value, g(new), rtol=0, atol=rounding(
          new.size, shift, FUNCTION, 4,
          magnitude=np.abs(twin.kl(name, new, anchor)).sum()))
  np.testing.assert_allclose(
      grad, twin.gradient(g, new), rtol=0, atol=rounding(
          shift, FUNCTION, 4, magnitude=1 + np.exp(anchor - new).max()))


def test_k3_is_exact_where_the_policies_nearly_agree():
  # exp(-d) - 1 + d = d^2 / 2 - d^3 / 6 + ...; the plain form gives 0 here.
  # Its expm1 is rounded at the size of d, a plain exp at that of 1.
  d = np.float32(1e-4)
  np.testing.assert_allclose(
      kl.k3(d, jnp.zeros(())), d * d / 2, rtol=0,
      atol=rounding(FUNCTION, magnitude=d))


def test_expectations_of_values_and_gradients():
  """What the module says that each estimator estimates, by summing over V."""
  rng = np.random.default_rng(1)
  logits, anchor = rng.normal(size=(2, 6)).astype(np.float32)
  anchor = jax.nn.log_softmax(anchor)

  def expected(estimator):
    def f(logits):
      new = jax.nn.log_softmax(logits)
      p = jax.lax.stop_gradient(jnp.exp(new))
      return jnp.sum(p * estimator(new, anchor))
    return jax.value_and_grad(f)(logits)

  def divergence(logits, forward):
    new = jax.nn.log_softmax(logits)
    p, q = (new, anchor) if forward else (anchor, new)
    return jnp.sum(jnp.exp(p) * (p - q))

  here, here_grad = jax.value_and_grad(divergence)(logits, True)
  there_grad = jax.grad(divergence)(logits, False)
  for name, want_grad in (
      ('k1', np.zeros(6)), ('k2', here_grad), ('k3', there_grad)):
    value, grad = expected(kl.KL_ESTIMATORS[name])
    # Sums over 6 of numbers below 1, in log_softmax and its gradient too; two
    # exp and a log.
    atol = rounding(4 * 6, 3 * FUNCTION)
    if name != 'k2':
      np.testing.assert_allclose(value, here, rtol=0, atol=atol)
    np.testing.assert_allclose(grad, want_grad, rtol=0, atol=atol)


@pytest.mark.parametrize('name', NAMES)
def test_masked_and_extreme_tokens(name):
  new = jnp.float32([jnp.nan, -jnp.inf, -80, -1, -1])
  anchor = jnp.float32([0, jnp.nan, -1, -80, -1.5])
  mask = jnp.array([0, 0, 1, 1, 1])
  f = kl.KL_ESTIMATORS[name]
  value, vjp = jax.vjp(lambda new: f(new, anchor, mask=mask), new)
  grad, = vjp(jnp.ones(5))
  assert np.all(np.isfinite(value)) and np.all(np.isfinite(grad))
  assert not np.any(value[:2]) and not np.any(grad[:2])
