"""Estimators of KL(new || anchor) from sampled tokens (Schulman, 2020).

With d = log new - log anchor at a token drawn from the new policy, each has
the KL (k2: nearly) as its mean. As losses they differ, for a loss is followed
by its gradient with the token held fixed: k1's has mean 0 and so no effect but
noise (use it as a metric or in the reward), k2's has the mean of the gradient
of KL(new || anchor), k3's that of KL(anchor || new).
"""

from typing import Optional

import chex
import jax
import jax.numpy as jnp

from jaxrl_llm.ops.importance import MAX_LOG_RATIO

Array = jax.Array


def _log_ratio(new, anchor, mask):
  """log new - log anchor, 0 where masked."""
  chex.assert_equal_shape([new, anchor])
  log_ratio = new - jax.lax.stop_gradient(anchor)
  if mask is not None:
    log_ratio = jnp.where(jnp.asarray(mask, bool), log_ratio, 0.0)
  return log_ratio.astype(jnp.float32)


def k1(new: Array, anchor: Array, *, mask: Optional[Array] = None) -> Array:
  """d: unbiased, of either sign.

  Args:
    new: [...] log-probs under the policy being updated.
    anchor: [...] log-probs under the frozen model.
    mask: [...], tokens that count; the others, whatever they hold, give 0.

  Returns:
    [...] float32, per token; the gradient goes through `new`.
  """
  return _log_ratio(new, anchor, mask)


def k2(new: Array, anchor: Array, *, mask: Optional[Array] = None) -> Array:
  """d^2 / 2: low variance, biased where the two are far apart.

  Args:
    new: [...] log-probs under the policy being updated.
    anchor: [...] log-probs under the frozen model.
    mask: [...], tokens that count; the others, whatever they hold, give 0.

  Returns:
    [...] float32, per token; the gradient goes through `new`.
  """
  return 0.5 * _log_ratio(new, anchor, mask) ** 2


def k3(new: Array, anchor: Array, *, mask: Optional[Array] = None) -> Array:
  """exp(-d) - 1 + d: unbiased and never negative; GRPO's, eq. 4.

  Args:
    new: [...] log-probs under the policy being updated.
    anchor: [...] log-probs under the frozen model.
    mask: [...], tokens that count; the others, whatever they hold, give 0.

  Returns:
    [...] float32, per token; the gradient goes through `new`.
  """
  d = jnp.maximum(_log_ratio(new, anchor, mask), -MAX_LOG_RATIO)
  # expm1: near d = 0 the plain form is all rounding.
  return jnp.expm1(-d) + d


KL_ESTIMATORS = dict(k1=k1, k2=k2, k3=k3)
