"""Functions of a user that name columns: an objective, an advantage by token, a
further term of the loss, and metrics by token.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from jaxrl_llm.ops import policy_losses


def near(
    new, old, advantages, mask, anchor_logprobs, truncated, *,
    pull: Annotated[float, '[0, inf)'] = 0.1, clip_low: float = 0.2,
    clip_high: float = 0.2):
  """Computes PPO's loss, and the distance to the anchor's log-probs.

  Args:
    new, old: [B, T] log-probs.
    advantages: [B] or [B, T].
    mask: [B, T].
    anchor_logprobs: [B, T].
    truncated: [B] bool.
    pull: weight of the squared distance.
    clip_low, clip_high: bounds of the ratio.
  """
  found = policy_losses.clip(
      new, old, advantages, mask, clip_low=clip_low, clip_high=clip_high)
  gap = new - anchor_logprobs
  return found._replace(loss=found.loss + pull * gap ** 2), {
      'near/gap': jnp.abs(gap),
      'near/truncated': jnp.where(mask, truncated[:, None], False)}


def later(
    rewards, *, where, turn, length,
    gamma: Annotated[float, '(0, 1]'] = 0.9):
  """Computes advantages that shrink with the tokens that follow.

  Args:
    rewards: [P, N].
    where: [P, N] bool, valid samples.
    turn: [P, N, T], -1 where the model wrote no token.
    length: [P, N] tokens of each response.
    gamma: factor of each token that follows.

  Returns:
    [P, N, T] advantages.
  """
  mean = jnp.mean(rewards, -1, where=where, keepdims=True)
  centred = jnp.where(where, rewards - mean, 0.0)
  rest = length[..., None] - 1 - jnp.arange(turn.shape[-1])
  return jnp.where(turn >= 0, centred[..., None] * gamma ** rest, 0.0)


def of_turns(rewards, *, where, turn, turn_rewards):
  """Computes the reward of each token's turn, less the mean of all rewards.

  Args:
    rewards: [P, N].
    where: [P, N] bool, valid samples.
    turn: [P, N, T], -1 where the model wrote no token.
    turn_rewards: [P, N, U].

  Returns:
    [P, N, T] advantages.
  """
  mean = jnp.mean(rewards, -1, where=where, keepdims=True)
  own = jnp.take_along_axis(turn_rewards, jnp.maximum(turn, 0), -1)
  return jnp.where((turn >= 0) & where[..., None], own - mean[..., None], 0.0)


def sure(
    new, old, entropy, mask, behaviour_logprobs, *,
    weight: Annotated[float, '[0, inf)'] = 0.01):
  """Computes a penalty of entropy, and the log-probs of the sampler.

  Args:
    new, old, entropy, behaviour_logprobs: [B, T].
    mask: [B, T].
    weight: of the entropy.
  """
  del mask
  return weight * entropy, {
      'sure/sampled': behaviour_logprobs,
      'sure/moved': jnp.abs(jax.lax.stop_gradient(new) - old)}
