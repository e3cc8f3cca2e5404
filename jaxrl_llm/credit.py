"""From rewards to what the learner is told about each row."""

from typing import Callable, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jaxrl_llm import schedules
from jaxrl_llm.ops import overlong, pkpo
from jaxrl_llm.ops.advantages import ADVANTAGES

Array = jax.Array


class Credit(NamedTuple):
  """What a step's rewards come to.

  Attributes:
    advantages: [P, N].
    trained: [P, N] bool, whether the row's tokens are trained.
    metrics: name to [] float32: reward/pass@k of the step's prompts, from the
      rewards as the verifier gave them, over the groups with at least k valid
      samples (NaN without one); with PKPO, pkpo/k, and pkpo/k_lowered, the
      share of groups with too few valid samples for it.
  """
  advantages: Array
  trained: Array
  metrics: dict[str, Array]


def passes(rewards: Array, valid: Array, ks: tuple[int, ...]) -> dict:
  """pass@k of groups: {'reward/pass@k': []}, see `Credit.metrics`.

  Args:
    rewards: [P, N]; a sample passes with a reward of at least 1.
    valid: [P, N] bool.
    ks: the k of interest; those above N are left out.
  """
  n = jnp.sum(valid, -1)
  right = jnp.sum(valid & (rewards >= 1.0), -1)
  return {
      f'reward/pass@{k}': jnp.mean(pkpo.pass_at_k(n, right, k), where=n >= k)
      for k in ks if k <= rewards.shape[-1]}


def make(config: ConfigDict) -> Callable[..., Credit]:
  """The program that a config asks for, compiled once.

  Returns:
    credit(rewards, valid, length, truncated, step), the first four [P, N] on
    the device and `step` [], the steps done, to Credit. The overlong penalty
    is part of the reward that advantages are made of; samples that are not
    valid are left out of their group.
  """
  mode, window = config.overlong.mode, config.overlong.window
  name, eval_k = config.advantage, config.eval_k
  transform, batch_std = config.pkpo.transform, config.pkpo.batch_std
  k_at = schedules.make(config.pkpo.k)

  @jax.jit
  def credit(rewards, valid, length, truncated, step):
    metrics = passes(rewards, valid, eval_k)
    if mode == 'penalty':
      rewards += overlong.soft_penalty(
          length, budget=config.max_response, window=window)
    trained = valid
    if mode == 'mask':
      trained = overlong.mask_truncated(
          valid.reshape(-1, 1), truncated.reshape(-1)).reshape(valid.shape)
    if name == 'pkpo':
      k = k_at(step)
      advantages = pkpo.advantage(
          rewards, k, where=valid, transform=transform, batch_std=batch_std)
      lowered = pkpo.largest_k(valid, transform=transform) < k
      metrics.update({
          'pkpo/k': k.astype(jnp.float32), 'pkpo/k_lowered': lowered.mean()})
    else:
      advantages = ADVANTAGES[name](rewards, where=valid)
    return Credit(advantages, trained, metrics)

  return credit
