"""Advantages of the turns of trajectories, from the rewards of each turn.

Tokens of a turn have the same advantage: what the trajectory got from this turn
on, compared with the other samples of the group.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from jaxrl_llm.ops import advantages

Array = jax.Array


def returns(
    rewards: Array, turn_rewards: Array, count: Array, discount: float,
) -> Array:
  """Computes the discounted return from each turn on.

    G_u = r_u + discount r_(u+1) + discount^2 r_(u+2) + ...

  What the reward of the trajectory has beyond those of its turns, such as a
  penalty or the verdict of a task, counts in the last turn.

  Args:
    rewards: [..., N] of trajectories.
    turn_rewards: [..., N, U] of their turns; the others may hold anything.
    count: [..., N] int, turns of each.
    discount: factor of each later turn.

  Returns:
    [..., N, U] float32, 0 behind the last turn.
  """
  number = jnp.arange(turn_rewards.shape[-1])
  each = jnp.where(number < count[..., None], turn_rewards, 0.0)
  rest = rewards - each.sum(-1)
  each += jnp.where(number == count[..., None] - 1, rest[..., None], 0.0)

  def back(later, reward):
    now = reward + discount * later
    return now, now

  _, found = jax.lax.scan(
      back, jnp.zeros_like(rest), jnp.moveaxis(each, -1, 0), reverse=True)
  return jnp.moveaxis(found, 0, -1)


def turns(
    rewards: Array,
    *,
    where: Array,
    turn: Array,
    turn_rewards: Array,
    discount: Annotated[float, '[0, 1]'] = 1.0,
    by_turn: bool = True,
    scale: bool = True,
    eps: Annotated[float, '[0, inf)'] = 1e-6,
) -> Array:
  """Computes the advantage of each token, that of its turn.

    A_u = (G_u - mean) / (std + eps)

  with G of `returns`. Mean and standard deviation are over the samples of the
  group that have a turn of this number, or over all turns of all its samples.
  With one turn in each trajectory it is `advantages.grpo`.

  Args:
    rewards: [P, N].
    where: [P, N] bool, valid samples.
    turn: [P, N, T] number of each token's turn, -1 where the model wrote none.
    turn_rewards: [P, N, U].
    discount: factor of the reward of each later turn.
    by_turn: compare turns of the same number; else all turns of a group.
    scale: divide by the standard deviation, with ddof=1.
    eps: added to the standard deviation.

  Returns:
    [P, N, T] advantages; 0 where the model wrote nothing, where the sample is
    invalid, and for a turn that is compared with no other.
  """
  rewards, _ = advantages.valid_rewards(rewards, where)
  count = jnp.max(turn, -1) + 1
  of_turns = returns(rewards, turn_rewards, count, discount)
  number = jnp.arange(turn_rewards.shape[-1])
  there = where[..., None] & (number < count[..., None])
  size = jnp.abs(rewards) + jnp.sum(
      jnp.abs(turn_rewards), -1, where=there)
  size = jnp.max(size, -1, keepdims=True, where=where, initial=0.0)
  size = size[..., None] if by_turn else size
  if by_turn:
    of_turns, there = (jnp.swapaxes(x, -1, -2) for x in (of_turns, there))
  shape = of_turns.shape
  if not by_turn:
    of_turns, there = (x.reshape(len(x), -1) for x in (of_turns, there))
  found = (advantages.grpo(of_turns, where=there, eps=eps)
           if scale else advantages.dr_grpo(of_turns, where=there))
  # Sums in another order differ in the last bits, which are no signal.
  bits = 4 * jnp.finfo(found.dtype).eps * turn_rewards.shape[-1] * size
  ends = [best(of_turns, -1, keepdims=True, where=there, initial=start)
          for best, start in ((jnp.max, -jnp.inf), (jnp.min, jnp.inf))]
  found = jnp.where(ends[0] - ends[1] <= bits, 0.0, found).reshape(shape)
  if by_turn:
    found = jnp.swapaxes(found, -1, -2)
  return jnp.where(turn >= 0, jnp.take_along_axis(
      found, jnp.maximum(turn, 0), -1), 0.0)


ADVANTAGES = dict(turns=turns)
