"""The programs that compute advantages from rewards.

Metrics:
  reward/pass@<k> [probability]: that one of k responses to a problem of the
    step is right, by its valid probe rows; for the k of eval_k
"""

from typing import Callable, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_llm.learner.options import OverlongOptions
from jaxrl_llm.ops import overlong as overlong_lib
from jaxrl_llm.ops import pkpo, screening

Array = jax.Array
# (rewards [P, N], where [P, N] bool, step [], separate [P, N, K] or None) ->
# (advantages [P, N], metrics)
Advantage = Callable[..., tuple[Array, dict[str, Array]]]


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
      not valid do not count in their group. A last argument, [B, N, K] or left
      out, has the rewards of several functions, for an advantage that takes
      them.
    of_wave: (rewards, valid, length, probe, complete [P], step) -> WaveSignal.
      The first four are [P, N]: `probe` marks the valid probe samples of the
      wave, `complete` the groups of which all N samples are there. The last
      argument is that of `of_batch`.
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


def make_program(
    advantage: Advantage, per_group: Advantage, *, samples: int,
    ks: tuple[int, ...], overlong: OverlongOptions, budget: int) -> Program:
  """Makes the programs of an advantage.

  Args:
    advantage: of a train batch.
    per_group: the same without scaling by the batch.
    samples: N, samples of a group.
    ks: k of the pass@k that a wave reports.
    overlong: treatment of long responses.
    budget: T, most tokens of a response.
  """
  def penalised(rewards, length):
    if overlong.mode != 'penalty':
      return rewards
    return rewards + overlong_lib.soft_penalty(
        length, budget=budget, window=overlong.window)

  @jax.jit
  def batch_advantages(rewards, valid, length, truncated, step, separate=None):
    trained = valid
    if overlong.mode == 'mask':
      trained = overlong_lib.mask_truncated(
          valid.reshape(-1, 1), truncated.reshape(-1)).reshape(valid.shape)
    values, reported = advantage(
        penalised(rewards, length), valid, step, separate)
    return BatchAdvantages(values, trained, reported)

  @jax.jit
  def wave_signal(
      rewards, valid, length, probe, complete, step, separate=None):
    def values(rewards, valid, separate=None):
      return per_group(rewards, valid, step, separate)[0]

    gain = jnp.abs(values(penalised(rewards, length), valid, separate)).sum(1)
    return WaveSignal(
        screening.signal_table(
            lambda right: values(right, jnp.ones_like(right, bool)), samples),
        jnp.where(complete, gain, jnp.nan),
        pass_rates(rewards, probe, ks))

  return Program(batch_advantages, wave_signal)
