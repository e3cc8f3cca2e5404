"""Methods of a user: an advantage, an objective, a correction, a curriculum."""

from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from jaxrl_llm.curriculum import groups
from jaxrl_llm.ops import policy_losses


def sharper(
    rewards, *, where, power: Annotated[float, '(0, 8]'] = 1.0,
    best: Annotated[int, 'schedule'] = 1):
  """Computes powers of the rewards above the mean of the best ones.

  Args:
    rewards: [P, N].
    where: [P, N] bool, valid samples.
    power: exponent of the difference.
    best: how many of the best samples make the baseline, over the steps.

  Returns:
    [P, N] advantages, and their metrics.
  """
  rewards = jnp.where(where, rewards, 0.0)
  ranks = jnp.argsort(jnp.argsort(-rewards, -1), -1)
  baseline = jnp.mean(
      rewards, -1, where=(ranks < best) | ~where.any(-1, keepdims=True),
      keepdims=True)
  gap = rewards - baseline
  return jnp.where(where, jnp.sign(gap) * jnp.abs(gap) ** power, 0.0), {
      'sharper/best': jnp.float32(best)}


def soft(
    new, old, advantages, mask, *, tau: Annotated[float, '(0, inf)'] = 1.0,
    shape: Literal['tanh', 'sigmoid'] = 'tanh'):
  """Computes a loss that saturates with the ratio.

  Args:
    new, old: [B, T] log-probs.
    advantages: [B].
    mask: [B, T].
    tau: width of the linear part of the ratio.
    shape: function that saturates; tanh or sigmoid.
  """
  gap = jnp.where(mask, new - jax.lax.stop_gradient(old), 0.0) / tau
  value = tau * (jnp.tanh(gap) if shape == 'tanh' else (
      4 * jax.nn.sigmoid(gap) - 2))
  nowhere = jnp.zeros_like(mask)
  return policy_losses.PolicyLoss(
      jnp.where(mask, -value * advantages[:, None], 0.0), jnp.exp(gap),
      nowhere, nowhere)


def gate(log_ratio, mask, *, width: Annotated[float, '(0, inf)'] = 3.0):
  """Weights a token by 1, or by 0 where two policies are far apart.

  Args:
    log_ratio: [B, T].
    mask: [B, T].
    width: largest log-ratio with a weight of 1.
  """
  log_ratio = jnp.where(mask, log_ratio, 0.0)
  return (jnp.abs(log_ratio) <= width).astype(jnp.float32)


def lively(
    sizes, *, least: float = 0.0, most: float = 1.0,
    rest: Annotated[int, '[0, inf)', 'free'] = 0):
  """Trains on groups whose mean reward lies between two bounds.

  Args:
    sizes: sizes of the run.
    least: a group's mean reward is at least this.
    most: a group's mean reward is at most this.
    rest: a number that changes nothing.
  """
  del rest

  def qualifies(table, rows):
    mean = table.reward[rows].mean(1)
    return (least <= mean) & (mean <= most)

  return groups.make(sizes, qualifies, always=False)
