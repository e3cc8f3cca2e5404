"""What to do with responses that the budget cut (DAPO, section 3.4).

Lengths are in tokens.
"""

import chex
import jax
import jax.numpy as jnp

Array = jax.Array


def mask_truncated(mask: Array, truncated: Array) -> Array:
  """Takes responses that the budget cut out of the loss.

  Args:
    mask: [B, T], tokens that count.
    truncated: [B] bool, the budget ended the response, not a stop token.

  Returns:
    [B, T] bool.
  """
  chex.assert_equal_shape_prefix([mask, truncated], 1)
  return jnp.asarray(mask, bool) & ~jnp.asarray(truncated, bool)[:, None]


def soft_penalty(length: Array, *, budget: Array, window: Array) -> Array:
  """Soft overlong punishment, to be added to the reward.

  0 up to budget - window tokens, then falling in a line to -1 at the budget
  (DAPO, Yu et al., 2025, arXiv:2503.14476, eq. 13, where budget is L_max and
  window L_cache).

  Args:
    length: [...] int, tokens of each response, stop token included.
    budget: tokens allowed.
    window: tokens before the budget over which the penalty grows; 0 punishes
      only what is longer than the budget.

  Returns:
    [...] float32 in [-1, 0].
  """
  spare = budget - window - jnp.asarray(length, jnp.float32)
  return jnp.clip(spare / jnp.maximum(window, 1), -1.0, 0.0)
