"""Advantages of a group of samples of one prompt.

Every function maps rewards [..., N] to advantages [..., N]. `where` marks the
valid samples (a verifier can fail). Invalid samples get 0 and do not count in
the group: n below is the number of valid samples. The rewards of invalid
samples may hold anything, NaN included. Integer rewards become float32.

Libraries differ on some conventions. Here the standard deviation has ddof=1,
and eps=1e-6 is added to it (not to the variance). In a group with one valid
sample, an advantage relative to the group is 0.
"""

from typing import Annotated, Optional, Sequence

import chex
import jax
import jax.numpy as jnp

Array = jax.Array


def valid_rewards(rewards, where):
  """Returns rewards as floats, 0 where invalid, and the mask of valid ones."""
  rewards = jnp.asarray(rewards)
  rewards = rewards.astype(jnp.promote_types(rewards.dtype, jnp.float32))
  if where is None:
    where = jnp.ones_like(rewards, bool)
  chex.assert_equal_shape([rewards, where])
  return jnp.where(where, rewards, 0.0), where


def _centre(rewards, where):
  """Returns centred rewards, 0 where invalid; and n [..., 1]."""
  rewards, where = valid_rewards(rewards, where)
  n = jnp.sum(where, axis=-1, keepdims=True, dtype=rewards.dtype)
  # The best reward is subtracted first, so that equal rewards give exact
  # zeros: the rounded mean of equal floats can differ from them.
  best = jnp.max(
      rewards, axis=-1, keepdims=True, where=where, initial=-jnp.inf)
  rewards = jnp.where(where, rewards - best, 0.0)
  mean = jnp.sum(rewards, axis=-1, keepdims=True) / jnp.maximum(n, 1)
  return jnp.where(where, rewards - mean, 0.0), n


def scaled(values: Array, std: Array, eps: float) -> Array:
  """Divides values by std + eps; 0 stays 0, also without eps."""
  return jnp.where(values == 0, 0.0, values / (std + eps))


def reinforce(rewards: Array, *, where: Optional[Array] = None) -> Array:
  """Computes REINFORCE advantages, the rewards: A_i = r_i (Williams, 1992).

  Args:
    rewards: [..., N].
    where: [..., N] bool, valid samples; None for all.

  Returns:
    [..., N] advantages, 0 where invalid.
  """
  return valid_rewards(rewards, where)[0]


def none(rewards: Array, *, where: Optional[Array] = None) -> Array:
  """Learns nothing from rewards: A_i = 0, as for distillation alone.

  Args:
    rewards: [..., N].
    where: [..., N] bool, valid samples; None for all.

  Returns:
    [..., N] zeros.
  """
  return jnp.zeros_like(valid_rewards(rewards, where)[0])


def rloo(rewards: Array, *, where: Optional[Array] = None) -> Array:
  """Computes RLOO advantages, with a leave-one-out baseline.

    A_i = r_i - mean of the group's other rewards

  This is n / (n - 1) times the centred reward (Kool et al., 2019; Ahmadian
  et al., 2024, arXiv:2402.14740).

  Args:
    rewards: [..., N].
    where: [..., N] bool, valid samples; None for all.

  Returns:
    [..., N] advantages; 0 where invalid, or the only valid sample.
  """
  centred, n = _centre(rewards, where)
  return centred * n / jnp.maximum(n - 1, 1)


def grpo(
    rewards: Array,
    *,
    where: Optional[Array] = None,
    ddof: Annotated[int, '[0, 1]'] = 1,
    eps: Annotated[float, '[0, inf)'] = 1e-6,
) -> Array:
  """Computes GRPO advantages, rewards standardised within the group.

    A_i = (r_i - mean) / (std + eps)

  Shao et al., 2024, arXiv:2402.03300, section 4.1.2.

  Args:
    rewards: [..., N].
    where: [..., N] bool, valid samples; None for all.
    ddof: the variance is divided by n - ddof.
    eps: added to the standard deviation.

  Returns:
    [..., N] advantages; 0 where invalid, or the only valid sample, and exactly
    0 in a group of equal rewards.
  """
  centred, n = _centre(rewards, where)
  squares = jnp.sum(centred ** 2, axis=-1, keepdims=True)
  return scaled(centred, jnp.sqrt(squares / jnp.maximum(n - ddof, 1)), eps)


def maxrl(rewards: Array, *, where: Optional[Array] = None) -> Array:
  """Computes MaxRL advantages, centred rewards divided by their mean.

    A_i = (r_i - mean) / mean

  For rewards 0 and 1 it is an unbiased estimate of the gradient of an
  approximation of log p, the logarithm of the pass rate, which is better the
  more samples a group has. So rare successes count more than under `dr_grpo`.
  Maximum Likelihood Reinforcement Learning, 2026, arXiv:2602.02710, whose text
  was not read: the equation is as public accounts have it.

  Args:
    rewards: [..., N], 0 or more.
    where: [..., N] bool, valid samples; None for all.

  Returns:
    [..., N] advantages; 0 where invalid, and in a group whose mean is not
    above 0.
  """
  centred, n = _centre(rewards, where)
  total = jnp.sum(
      valid_rewards(rewards, where)[0], axis=-1, keepdims=True)
  mean = total / jnp.maximum(n, 1)
  return jnp.where(mean > 0, centred / jnp.where(mean > 0, mean, 1.0), 0.0)


def dr_grpo(rewards: Array, *, where: Optional[Array] = None) -> Array:
  """Computes Dr. GRPO advantages, centred rewards: A_i = r_i - mean.

  They are not divided by the group's standard deviation: that division favours
  prompts that are nearly always or nearly never solved (Liu et al., 2025,
  arXiv:2503.20783, section 3.2).

  Args:
    rewards: [..., N].
    where: [..., N] bool, valid samples; None for all.

  Returns:
    [..., N] advantages; 0 where invalid, or the only valid sample.
  """
  return _centre(rewards, where)[0]


def reinforce_pp(
    rewards: Array,
    *,
    where: Optional[Array] = None,
    per_group: bool = False,
    ddof: Annotated[int, '[0, 1]'] = 1,
    eps: Annotated[float, '[0, inf)'] = 1e-6,
) -> Array:
  """Computes REINFORCE++ advantages: centred in the group, scaled by the batch.

    A_i = (r_i - mean of the group) / (std of the batch + eps)

  REINFORCE++ with baseline (Hu et al., 2025, arXiv:2501.03262). The whole batch
  has one scale, which hardly depends on the group's own samples. `std` is the
  standard deviation of the centred rewards of all valid samples; in each group
  their mean is 0. It is taken over samples. The authors' code takes it over
  tokens, which gives long responses more weight.

  Args:
    rewards: [..., N], all the groups of the batch.
    where: [..., N] bool, valid samples; None for all.
    per_group: leave out the scale of the batch: `dr_grpo`.
    ddof: the variance is divided by the number of valid samples minus ddof.
    eps: added to the standard deviation.

  Returns:
    [..., N] advantages; 0 where invalid, or the only valid sample.
  """
  centred, n = _centre(rewards, where)
  if per_group:
    return centred
  variance = jnp.sum(centred ** 2) / jnp.maximum(jnp.sum(n) - ddof, 1)
  return scaled(centred, jnp.sqrt(variance), eps)


def gdpo(
    rewards: Array,
    *,
    where: Optional[Array] = None,
    separate: Optional[Array] = None,
    weights: Sequence[float] = (),
    per_group: bool = False,
    ddof: Annotated[int, '[0, 1]'] = 1,
    eps: Annotated[float, '[0, inf)'] = 1e-6,
) -> Array:
  """Computes GDPO advantages, each of several rewards standardised by itself.

    S_i = sum_k w_k (r_ik - mean_k) / (std_k + eps)    in the group
    A_i = S_i / (std of the batch + eps)

  In a sum of rewards, different combinations may have equal sums, and the one
  that varies most hides the others; here all have the same scale (Liu et al.,
  2026, arXiv:2601.05242). The mean of S over a group is 0, so none is
  subtracted in the batch.

  Args:
    rewards: [..., N], all the groups of the batch; the only reward without
      `separate`.
    where: [..., N] bool, valid samples; None for all.
    separate: [..., N, K] several rewards; NaN where one does not count, which
      then adds nothing.
    weights: K factors; () for 1.
    per_group: leave out the scale of the batch.
    ddof: the variances are divided by the number of samples minus ddof.
    eps: added to the standard deviations.

  Returns:
    [..., N] advantages; 0 where invalid, or the only valid sample, and exactly
    0 in a group whose samples have equal rewards.
  """
  rewards, where = valid_rewards(rewards, where)
  if separate is None:
    separate = rewards[..., None]
  each = jnp.moveaxis(separate, -1, 0)
  each = grpo(each, where=where & ~jnp.isnan(each), ddof=ddof, eps=eps)
  if weights:
    each *= jnp.asarray(weights).reshape(-1, *[1] * rewards.ndim)
  total = each.sum(0)
  if per_group:
    return total
  count = jnp.sum(where, dtype=total.dtype)
  variance = jnp.sum(total ** 2) / jnp.maximum(count - ddof, 1)
  return scaled(total, jnp.sqrt(variance), eps)


ADVANTAGES = dict(
    reinforce=reinforce, rloo=rloo, grpo=grpo, maxrl=maxrl, dr_grpo=dr_grpo,
    reinforce_pp=reinforce_pp, gdpo=gdpo)

# Advantages relative to the group: with N = 1 they are all 0.
GROUP_RELATIVE = frozenset({
    'rloo', 'grpo', 'maxrl', 'dr_grpo', 'reinforce_pp', 'gdpo'})
