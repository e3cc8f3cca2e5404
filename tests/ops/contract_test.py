"""Contract tests for all variants of the loss.

A variant combines an objective, an aggregation, an importance correction and
optionally a KL estimator, as a learner does.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import importance, kl, policy_losses
from tests.helpers.methods import hyperparameters
from tests.helpers.tolerance import FUNCTION, rounding

B, T = 4, 6
# A new variant adds what it needs; each gets what its signature names.
HYPER = dict(clip_low=0.2, clip_high=0.28, dual_clip=3.0, kl_coef=0.1,
             tau_positive=1.0, tau_negative=1.05, k_positive=2.0,
             lambda_positive=3.0, k_negative=3.0, lambda_negative=2.0,
             log_clip_low=0.4, log_clip_high=0.4, divergence=0.2,
             low=0.5, cap=2.0)


def _batch(seed, gaps):
  """Makes log-probs with random differences `gaps`; the third row is empty."""
  rng = np.random.default_rng(seed)
  gap = lambda: rng.choice(gaps, (B, T))
  old = -rng.exponential(2.0, (B, T))
  length = np.array([6, 3, 0, 5])
  return {name: np.float32(x) for name, x in dict(
      new=old + gap(), old=old, behaviour=old + gap(), anchor=old + gap(),
      advantages=rng.standard_normal((B, T)),
      mask=np.arange(T) < length[:, None]).items()}


@functools.cache
def _program(objective, correction, estimator):
  """Returns a jitted f(batch, weights [B, T], hyper) -> loss, gradient.

  Also returns the list of its traces.
  """
  traces = []

  def given(fn, hyper):
    return {x: hyper[x] for x in hyperparameters(fn)}

  def loss(new, batch, weights, hyper):
    traces.append(None)
    mask, old = batch['mask'], batch['old']
    surrogate = policy_losses.OBJECTIVES[objective]
    policy = surrogate(
        new, old, batch['advantages'], mask, **given(surrogate, hyper))
    correct = importance.CORRECTIONS[correction]
    token_loss = policy.loss * correct(
        old - batch['behaviour'], mask, **given(correct, hyper))
    if estimator is not None:
      token_loss += hyper['kl_coef'] * kl.KL_ESTIMATORS[estimator](
          new, batch['anchor'], mask=mask)
    return jnp.sum(weights * token_loss)

  run = jax.jit(lambda batch, *args: jax.value_and_grad(loss)(
      batch['new'], batch, *args))
  return run, traces


_token_weights = jax.jit(policy_losses.token_weights, static_argnums=1)


# Estimators are added to the loss: each meets all objectives and all
# corrections, but not all pairs of these.
ESTIMATORS = None, *kl.KL_ESTIMATORS
PROGRAMS = [
    (objective, correction, ESTIMATORS[(i + j) % len(ESTIMATORS)])
    for i, objective in enumerate(policy_losses.OBJECTIVES)
    for j, correction in enumerate(importance.CORRECTIONS)]


@pytest.mark.parametrize('aggregation', policy_losses.AGGREGATIONS)
@pytest.mark.parametrize('objective, correction, estimator', PROGRAMS)
def test_contract(objective, aggregation, correction, estimator):
  program, traces = _program(objective, correction, estimator)

  def run(batch, parts=1, scale=1.0):
    """Computes loss and gradient over microbatches padded with empty rows."""
    hyper = {k: np.float32(v * scale) for k, v in HYPER.items()}
    weights = _token_weights(
        batch['mask'], aggregation, budget=np.float32(T * scale))
    rows = dict(batch, weights=np.asarray(weights))
    loss, grad = np.float32(0), np.zeros((B, T), np.float32)
    for part in np.split(np.arange(B), parts):
      micro = {k: np.pad(v[part], ((0, B - len(part)), (0, 0)))
               for k, v in rows.items()}
      weights = micro.pop('weights')
      value, slope = jax.device_get(program(micro, weights, hyper))
      loss, grad[part] = loss + value, slope[:len(part)]
    return loss, grad

  ordinary = _batch(0, np.linspace(-0.5, 0.5, 11))
  loss, grad = run(ordinary)
  assert np.any(grad)

  # Microbatches add up to the whole: the loss is a mean over tokens of what is
  # 8 at most. Of a token's gradient only a sequence's ratio is a sum.
  for parts in (2, 4):
    got = run(ordinary, parts)
    np.testing.assert_allclose(
        got[0], loss, rtol=0, atol=rounding(B * T, magnitude=8))
    np.testing.assert_allclose(
        got[1], grad, rtol=0, atol=rounding(
            T, 3 * FUNCTION, magnitude=np.abs(grad).max()))

  # Masked tokens are inert to the bit.
  masked = ordinary['mask'] == 0
  for garbage in (0.0, 1e30, -np.inf, np.nan):
    dirty = {k: v if k == 'mask' else np.where(masked, np.float32(garbage), v)
             for k, v in ordinary.items()}
    got = run(dirty)
    assert got[0].tobytes() == loss.tobytes()
    np.testing.assert_array_equal(got[1], grad)
    assert not np.any(got[1][masked])

  # Extreme ratios give finite gradients, with a finite norm.
  for seed in range(3):
    got = run(_batch(seed, [-200, -80, -1, 0, 1, 80, 200]))
    assert np.isfinite(got[0]) and np.isfinite(np.sum(got[1] ** 2))

  # Hyperparameters are data: nothing was compiled twice, for any aggregation.
  run(ordinary, scale=1.5)
  assert len(traces) == 1
