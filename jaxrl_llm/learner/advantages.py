"""From a batch's rewards to advantages: the program between host and learner.

Every advantage is called in the same way: rewards, `where`, hyperparameters.
The latter are the fields in the config's section of the advantage's name, such
as `pkpo.k`; a scheduled one has its value at the step.
"""

from typing import Callable, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jaxrl_llm import schedules
from jaxrl_llm.ops import advantages, overlong, pkpo

Array = jax.Array


class Advantage(NamedTuple):
  """An advantage.

  Attributes:
    fn: (rewards [P, N], *, where [P, N], **hyperparameters) -> [P, N].
    metrics: (where [P, N], **hyperparameters) -> name to [] float32, what a
      step reports of it.
    scheduled: hyperparameters that may change over a run, see `schedules`.
  """
  fn: Callable[..., Array]
  metrics: Callable[..., dict[str, Array]] = lambda where: {}
  scheduled: tuple[str, ...] = ()


def _pkpo_metrics(where, *, k, transform, batch_std):
  """Returns k, and the share of groups with too few valid samples for it."""
  del batch_std
  lowered = pkpo.largest_k(where, transform=transform) < k
  return {'pkpo/k': jnp.float32(k), 'pkpo/k_lowered': lowered.mean()}


ADVANTAGES = {
    **{name: Advantage(fn) for name, fn in advantages.ADVANTAGES.items()},
    'pkpo': Advantage(pkpo.advantage, _pkpo_metrics, scheduled=('k',)),
}


def bind(config: ConfigDict) -> Callable[[Array, Array, Array], tuple]:
  """Makes the function of the advantage that a config asks for.

  Args:
    config: its `advantage` is a key of ADVANTAGES.

  Returns:
    (rewards [P, N], where [P, N] bool, step []) -> (advantages [P, N],
    metrics). `where` marks valid samples; `step` counts the steps done.
    Jittable: no value of `step` compiles anything new.
  """
  chosen = ADVANTAGES[config.advantage]
  section = config.get(config.advantage) or {}
  scheduled = {
      name: schedules.make(section[name]) for name in chosen.scheduled}
  fixed = {k: v for k, v in section.items() if k not in scheduled}

  def advantage(rewards, where, step):
    at_step = {name: value(step) for name, value in scheduled.items()}
    return (chosen.fn(rewards, where=where, **fixed, **at_step),
            chosen.metrics(where, **fixed, **at_step))

  return advantage


class BatchAdvantages(NamedTuple):
  """Advantages of a batch.

  Attributes:
    advantages: [P, N].
    trained: [P, N] bool, whether the row's tokens are trained.
    metrics: name to [] float32: reward/pass@k of the step's prompts, from the
      rewards as the verifier gave them, over the groups with at least k valid
      samples (NaN without one); and what the advantage reports, such as pkpo/k
      and pkpo/k_lowered.
  """
  advantages: Array
  trained: Array
  metrics: dict[str, Array]


def pass_rates(
    rewards: Array, valid: Array, ks: tuple[int, ...]) -> dict[str, Array]:
  """Estimates pass@k of groups.

  Args:
    rewards: [P, N]; a sample passes with a reward of at least 1.
    valid: [P, N] bool.
    ks: the k to report; those above N are left out.

  Returns:
    'reward/pass@k' to [], see `BatchAdvantages.metrics`.
  """
  n = jnp.sum(valid, -1)
  right = jnp.sum(valid & (rewards >= 1.0), -1)
  return {
      f'reward/pass@{k}': jnp.mean(pkpo.pass_at_k(n, right, k), where=n >= k)
      for k in ks if k <= rewards.shape[-1]}


def make(config: ConfigDict) -> Callable[..., BatchAdvantages]:
  """Makes the program that a config asks for; it is compiled once.

  Returns:
    (rewards, valid, length, truncated, step) -> BatchAdvantages. The first
    four are [P, N] on the device; `step` [] counts the steps done. The
    overlong penalty is part of the reward that advantages are made of; samples
    that are not valid are left out of their group.
  """
  mode, window = config.overlong.mode, config.overlong.window
  budget, ks, advantage = config.max_response, config.eval_k, bind(config)

  @jax.jit
  def batch_advantages(rewards, valid, length, truncated, step):
    metrics = pass_rates(rewards, valid, ks)
    if mode == 'penalty':
      rewards += overlong.soft_penalty(length, budget=budget, window=window)
    trained = valid
    if mode == 'mask':
      trained = overlong.mask_truncated(
          valid.reshape(-1, 1), truncated.reshape(-1)).reshape(valid.shape)
    values, reported = advantage(rewards, valid, step)
    return BatchAdvantages(values, trained, metrics | reported)

  return batch_advantages
