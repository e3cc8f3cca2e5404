"""The programs that compute advantages from rewards.

All advantages have the same arguments: rewards, `where` and hyperparameters.
Hyperparameters are the fields of the config section with the advantage's name,
such as `pkpo.k`. A scheduled one has the value of its schedule at the step.
"""

from typing import Callable, NamedTuple, Optional

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jaxrl_llm import schedules
from jaxrl_llm.ops import advantages, overlong, pkpo, screening

Array = jax.Array


class Advantage(NamedTuple):
  """An advantage, its metrics and its scheduled hyperparameters.

  Attributes:
    fn: (rewards [P, N], *, where [P, N], **hyperparameters) -> advantages
      [P, N].
    metrics: (where [P, N], **hyperparameters) -> {name: [] float32}, reported
      with each train batch.
    scheduled: hyperparameters that may change over a run, see `schedules`.
    per_group: `fn` without scaling by the batch, if it has such a scale.
  """
  fn: Callable[..., Array]
  metrics: Callable[..., dict[str, Array]] = lambda where: {}
  scheduled: tuple[str, ...] = ()
  per_group: Optional[Callable[..., Array]] = None


def _pkpo_metrics(where, *, k, transform, batch_std):
  """Returns k, and the share of groups with too few valid samples for it."""
  del batch_std
  lowered = pkpo.largest_k(where, transform=transform) < k
  return {'pkpo/k': jnp.float32(k), 'pkpo/k_lowered': lowered.mean()}


def _pkpo_per_group(rewards, *, where, k, transform, batch_std):
  """Returns PKPO's advantages without the batch's standard deviation."""
  del batch_std
  return pkpo.advantage(rewards, k, where=where, transform=transform)


ADVANTAGES = {
    **{name: Advantage(fn) for name, fn in advantages.ADVANTAGES.items()},
    'reinforce_pp': Advantage(
        advantages.reinforce_pp, per_group=advantages.dr_grpo),
    'pkpo': Advantage(
        pkpo.advantage, _pkpo_metrics, scheduled=('k',),
        per_group=_pkpo_per_group),
}


def bind(
    config: ConfigDict, *, per_group: bool = False,
) -> Callable[[Array, Array, Array], tuple]:
  """Makes the advantage function of a config.

  Args:
    config: config of the run; its `advantage` is a key of ADVANTAGES.
    per_group: leave out scaling by the batch, so that a group's advantages do
      not depend on the others.

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
  fn = (per_group and chosen.per_group) or chosen.fn

  def advantage(rewards, where, step):
    at_step = {name: value(step) for name, value in scheduled.items()}
    return (fn(rewards, where=where, **fixed, **at_step),
            chosen.metrics(where, **fixed, **at_step))

  return advantage


class BatchAdvantages(NamedTuple):
  """Advantages of a train batch.

  Attributes:
    advantages: [B, N].
    trained: [B, N] bool, whether the row's tokens count in the loss.
    metrics: name to [] float32, of the advantage, such as pkpo/k and
      pkpo/k_lowered.
  """
  advantages: Array
  trained: Array
  metrics: dict[str, Array]


class WaveSignal(NamedTuple):
  """Values that the curriculum and the metrics get from a wave's rewards.

  Attributes:
    signal: [N + 1], sum of |advantage| of a group with c of N right.
    gain: [P], that sum for each group of the wave; NaN if it is not complete.
    metrics: reward/pass@k to [] float32. They use the verifier's rewards,
      without penalties, and the groups with at least k valid probe samples;
      NaN without such a group.
  """
  signal: Array
  gain: Array
  metrics: dict[str, Array]


class Program(NamedTuple):
  """The two programs of a config, each compiled once.

  Attributes:
    of_batch: (rewards, valid, length, truncated, step) -> BatchAdvantages. The
      first four are [B, N] on the device; `step` [] is the number of steps
      done. The overlong penalty is added to the rewards first. Samples that are
      not valid do not count in their group.
    of_wave: (rewards, valid, length, probe, complete [P], step) -> WaveSignal.
      The first four are [P, N]: `probe` marks the valid probe samples of the
      wave, `complete` the groups of which all N samples are there.
  """
  of_batch: Callable[..., BatchAdvantages]
  of_wave: Callable[..., WaveSignal]


def pass_rates(
    rewards: Array, valid: Array, ks: tuple[int, ...]) -> dict[str, Array]:
  """Estimates the mean pass@k of groups.

  Args:
    rewards: [P, N]; a sample passes with a reward of at least 1.
    valid: [P, N] bool.
    ks: values of k; values above N are left out.

  Returns:
    'reward/pass@k' to [], see `WaveSignal.metrics`.
  """
  n = jnp.sum(valid, -1)
  right = jnp.sum(valid & (rewards >= 1.0), -1)
  return {
      f'reward/pass@{k}': jnp.mean(pkpo.pass_at_k(n, right, k), where=n >= k)
      for k in ks if k <= rewards.shape[-1]}


def make(config: ConfigDict) -> Program:
  """Makes the advantage programs of a config."""
  mode, window = config.overlong.mode, config.overlong.window
  budget, ks, n = config.max_response, config.eval_k, config.samples_per_prompt
  advantage, per_group = bind(config), bind(config, per_group=True)

  def penalised(rewards, length):
    if mode != 'penalty':
      return rewards
    return rewards + overlong.soft_penalty(
        length, budget=budget, window=window)

  @jax.jit
  def batch_advantages(rewards, valid, length, truncated, step):
    trained = valid
    if mode == 'mask':
      trained = overlong.mask_truncated(
          valid.reshape(-1, 1), truncated.reshape(-1)).reshape(valid.shape)
    values, reported = advantage(penalised(rewards, length), valid, step)
    return BatchAdvantages(values, trained, reported)

  @jax.jit
  def wave_signal(rewards, valid, length, probe, complete, step):
    def values(rewards, valid):
      return per_group(rewards, valid, step)[0]

    gain = jnp.abs(values(penalised(rewards, length), valid)).sum(1)
    return WaveSignal(
        screening.signal_table(
            lambda right: values(right, jnp.ones_like(right, bool)), n),
        jnp.where(complete, gain, jnp.nan),
        pass_rates(rewards, probe, ks))

  return Program(batch_advantages, wave_signal)
