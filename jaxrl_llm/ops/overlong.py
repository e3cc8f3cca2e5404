"""Treatment of overlong responses (DAPO, section 3.4).

Lengths are in tokens.
"""

import chex
import jax
import jax.numpy as jnp

Array = jax.Array


def mask_truncated(mask: Array, truncated: Array) -> Array:
  """Masks the tokens of truncated responses out of the loss.

  Args:
    mask: [B, T], tokens that count.
    truncated: [B] bool, whether the token budget, not a stop token, ended the
      response.

  Returns:
    [B, T] bool.
  """
  chex.assert_equal_shape_prefix([mask, truncated], 1)
  return jnp.asarray(mask, bool) & ~jnp.asarray(truncated, bool)[:, None]


def soft_penalty(length: Array, *, budget: Array, window: Array) -> Array:
  """Computes the soft overlong punishment, which is added to the reward.

  It is 0 up to budget - window tokens, then falls linearly to -1 at the budget
  (DAPO, Yu et al., 2025, arXiv:2503.14476, eq. 13, where budget is L_max and
  window L_cache).

  Args:
    length: [...] int, tokens of each response, stop token included.
    budget: tokens allowed.
    window: tokens before the budget over which the penalty grows; with 0, only
      responses longer than the budget have a penalty.

  Returns:
    [...] float32 in [-1, 0].
  """
  spare = budget - window - jnp.asarray(length, jnp.float32)
  return jnp.clip(spare / jnp.maximum(window, 1), -1.0, 0.0)
