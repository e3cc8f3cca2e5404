"""The program that computes a batch's advantages from its rewards.

All advantages have the same arguments: rewards, `where` and hyperparameters.
Hyperparameters are the fields of the config section with the advantage's name,
such as `pkpo.k`. A scheduled one has the value of its schedule at the step.
"""

from typing import Callable, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jaxrl_llm import schedules
from jaxrl_llm.ops import advantages, overlong, pkpo

Array = jax.Array


class Advantage(NamedTuple):
  """An advantage, its metrics and its scheduled hyperparameters.

  Attributes:
    fn: (rewards [P, N], *, where [P, N], **hyperparameters) -> advantages
      [P, N].
    metrics: (where [P, N], **hyperparameters) -> {name: [] float32}, reported
      at each step.
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
  """Makes the advantage function of a config.

  Args:
    config: config of the run; its `advantage` is a key of ADVANTAGES.

  Returns:
    (rewards [P, N], where [P, N] bool, step []) -> (advantages [P, N],
    metrics). `where` marks valid samples; `step` is the number of steps done.
    Jittable, with a traced `step`.
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
    trained: [P, N] bool, whether the row's tokens count in the loss.
    metrics: name to [] float32: reward/pass@k of the step's prompts, and the
      metrics of the advantage, such as pkpo/k and pkpo/k_lowered. pass@k uses
      the verifier's rewards, without penalties, and the groups with at least k
      valid samples; it is NaN without such a group.
  """
  advantages: Array
  trained: Array
  metrics: dict[str, Array]


def pass_rates(
    rewards: Array, valid: Array, ks: tuple[int, ...]) -> dict[str, Array]:
  """Estimates the mean pass@k of groups.

  Args:
    rewards: [P, N]; a sample passes with a reward of at least 1.
    valid: [P, N] bool.
    ks: values of k; values above N are left out.

  Returns:
    'reward/pass@k' to [], see `BatchAdvantages.metrics`.
  """
  n = jnp.sum(valid, -1)
  right = jnp.sum(valid & (rewards >= 1.0), -1)
  return {
      f'reward/pass@{k}': jnp.mean(pkpo.pass_at_k(n, right, k), where=n >= k)
      for k in ks if k <= rewards.shape[-1]}


def make(config: ConfigDict) -> Callable[..., BatchAdvantages]:
  """Makes the advantage program of a config; it is compiled once.

  Returns:
    (rewards, valid, length, truncated, step) -> BatchAdvantages. The first
    four are [P, N] on the device; `step` [] is the number of steps done. The
    overlong penalty is added to the rewards before the advantages are computed.
    Samples that are not valid do not count in their group.
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
