"""Estimators of KL(new || anchor) from sampled tokens (Schulman, 2020).

Let d = log new - log anchor at a token drawn from the new policy. The mean of
each estimator is the KL (for k2, approximately).

As losses they differ, because the gradient is taken with the token held fixed.
The mean gradient of

  k1 is 0: it adds only noise, so use k1 as a metric or in the reward.
  k2 is the gradient of KL(new || anchor).
  k3 is the gradient of KL(anchor || new).
"""

from typing import Optional

import chex
import jax
import jax.numpy as jnp

from jaxrl_llm.ops.importance import MAX_LOG_RATIO

Array = jax.Array


def k1(new: Array, anchor: Array, *, mask: Optional[Array] = None) -> Array:
  """Computes d: unbiased, positive or negative.

  Args:
    new: [...] log-probs under the policy being updated.
    anchor: [...] log-probs under the frozen model.
    mask: [...], tokens that count; the others may hold anything and give 0.

  Returns:
    [...] float32 per token; the gradient goes through `new`.
  """
  chex.assert_equal_shape([new, anchor])
  log_ratio = new - jax.lax.stop_gradient(anchor)
  if mask is not None:
    log_ratio = jnp.where(jnp.asarray(mask, bool), log_ratio, 0.0)
  return log_ratio.astype(jnp.float32)


def k2(new: Array, anchor: Array, *, mask: Optional[Array] = None) -> Array:
  """Computes d^2 / 2: low variance, biased where the policies differ much.

  Args:
    new: [...] log-probs under the policy being updated.
    anchor: [...] log-probs under the frozen model.
    mask: [...], tokens that count; the others may hold anything and give 0.

  Returns:
    [...] float32 per token; the gradient goes through `new`.
  """
  return 0.5 * k1(new, anchor, mask=mask) ** 2


def k3(new: Array, anchor: Array, *, mask: Optional[Array] = None) -> Array:
  """Computes exp(-d) - 1 + d: unbiased and never negative.

  This is the KL penalty of GRPO (Shao et al., 2024, arXiv:2402.03300, eq. 4).

  Args:
    new: [...] log-probs under the policy being updated.
    anchor: [...] log-probs under the frozen model.
    mask: [...], tokens that count; the others may hold anything and give 0.

  Returns:
    [...] float32 per token; the gradient goes through `new`.
  """
  d = jnp.maximum(k1(new, anchor, mask=mask), -MAX_LOG_RATIO)
  # Near d = 0, exp(-d) - 1 would lose all its digits to rounding.
  return jnp.expm1(-d) + d


KL_ESTIMATORS = dict(k1=k1, k2=k2, k3=k3)
