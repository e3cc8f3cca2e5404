"""Advantages of a group of samples of one prompt.

Every function maps rewards [..., N] to advantages [..., N]. `where` marks the
valid samples (a verifier can fail): the others get 0 and leave the group, so
that n below is the group's own count and their rewards may be anything, NaN
too. Integer rewards are taken as float32.

Conventions on which libraries differ, the same everywhere here: the standard
deviation has ddof=1, eps=1e-6 is added to it (not to the variance), and where
an advantage compares with the group, a lone sample gets 0.
"""

from typing import Optional

import chex
import jax
import jax.numpy as jnp

Array = jax.Array


def valid_rewards(rewards, where):
  """Rewards in floating point, 0 where invalid, and the mask of the valid."""
  rewards = jnp.asarray(rewards)
  rewards = rewards.astype(jnp.promote_types(rewards.dtype, jnp.float32))
  if where is None:
    where = jnp.ones_like(rewards, bool)
  chex.assert_equal_shape([rewards, where])
  return jnp.where(where, rewards, 0.0), where


def _centre(rewards, where):
  """Rewards minus their group's mean, 0 where invalid; and n [..., 1]."""
  rewards, where = valid_rewards(rewards, where)
  n = jnp.sum(where, axis=-1, keepdims=True, dtype=rewards.dtype)
  # Measured from the group's best, equal rewards are exact zeros; the mean of
  # equal floats need not be one of them.
  best = jnp.max(
      rewards, axis=-1, keepdims=True, where=where, initial=-jnp.inf)
  rewards = jnp.where(where, rewards - best, 0.0)
  mean = jnp.sum(rewards, axis=-1, keepdims=True) / jnp.maximum(n, 1)
  return jnp.where(where, rewards - mean, 0.0), n


def reinforce(rewards: Array, *, where: Optional[Array] = None) -> Array:
  """The reward itself: A_i = r_i (Williams, 1992).

  Args:
    rewards: [..., N].
    where: [..., N] bool, valid samples; None is all.

  Returns:
    [..., N] advantages, 0 where invalid.
  """
  return valid_rewards(rewards, where)[0]


def rloo(rewards: Array, *, where: Optional[Array] = None) -> Array:
  """Leave-one-out baseline: A_i = r_i - mean of the group's other rewards.

  Equal to n / (n - 1) times the centred reward (Kool et al., 2019; Ahmadian
  et al., 2024, arXiv:2402.14740).

  Args:
    rewards: [..., N].
    where: [..., N] bool, valid samples; None is all.

  Returns:
    [..., N] advantages, 0 where invalid or alone.
  """
  centred, n = _centre(rewards, where)
  return centred * n / jnp.maximum(n - 1, 1)


def grpo(
    rewards: Array,
    *,
    where: Optional[Array] = None,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Array:
  """Standardised over the group: A_i = (r_i - mean) / (std + eps).

  GRPO (Shao et al., 2024, arXiv:2402.03300, section 4.1.2).

  Args:
    rewards: [..., N].
    where: [..., N] bool, valid samples; None is all.
    ddof: the variance is divided by n - ddof.
    eps: added to the standard deviation.

  Returns:
    [..., N] advantages, 0 where invalid or alone, and exactly 0 in a group of
    equal rewards.
  """
  centred, n = _centre(rewards, where)
  squares = jnp.sum(centred ** 2, axis=-1, keepdims=True)
  return centred / (jnp.sqrt(squares / jnp.maximum(n - ddof, 1)) + eps)


def dr_grpo(rewards: Array, *, where: Optional[Array] = None) -> Array:
  """Centred only: A_i = r_i - mean (Dr. GRPO, Liu et al., 2025).

  Without the division by the group's spread, which favours prompts that are
  nearly always or nearly never solved (arXiv:2503.20783, section 3.2).

  Args:
    rewards: [..., N].
    where: [..., N] bool, valid samples; None is all.

  Returns:
    [..., N] advantages, 0 where invalid or alone.
  """
  return _centre(rewards, where)[0]


def reinforce_pp(
    rewards: Array,
    *,
    where: Optional[Array] = None,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Array:
  """Centred in the group, scaled over the batch.

    A_i = (r_i - mean of the group) / (std of the batch + eps)

  REINFORCE++ with baseline (Hu et al., 2025, arXiv:2501.03262): one scale for
  the whole batch, so that it hardly depends on the group's own samples. `std`
  is that of the centred rewards of all valid samples of the array given; their
  mean is 0 already, group by group. It is taken over samples; the authors' code
  takes it over tokens, which weighs long responses more.

  Args:
    rewards: [..., N], all the groups of the batch.
    where: [..., N] bool, valid samples; None is all.
    ddof: the variance is divided by the number of valid samples minus this.
    eps: added to the standard deviation.

  Returns:
    [..., N] advantages, 0 where invalid or alone.
  """
  centred, n = _centre(rewards, where)
  variance = jnp.sum(centred ** 2) / jnp.maximum(jnp.sum(n) - ddof, 1)
  return centred / (jnp.sqrt(variance) + eps)


ADVANTAGES = dict(
    reinforce=reinforce, rloo=rloo, grpo=grpo, dr_grpo=dr_grpo,
    reinforce_pp=reinforce_pp)

# They compare samples of one prompt: with N = 1 every advantage is 0.
GROUP_RELATIVE = frozenset({'rloo', 'grpo', 'dr_grpo', 'reinforce_pp'})
