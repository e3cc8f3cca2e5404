"""Loss of an actor that is another, smaller model than the policy.

The actor omega writes the responses; the policy theta learns from them by
rejection or weights. Both take a step on the same rows (Eq. 8 of v2, see
`ops/obrs`):

  L = L_policy(theta) + L_PPO(omega) + lambda_distill L_distill(omega)

  L_PPO(omega) = -SG(F(p_omega_ref / p_inf))
                 min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)       (Eq. 6)
  L_distill(omega) = KL(SG(p_theta) || p_omega)                         (Eq. 7)

with r = p_omega / p_omega_ref. Each is averaged over the tokens as the policy's
loss is, but over all of them: only the policy's loss rejects tokens.

Metrics:
  update/actor_loss [loss]: the actor's, of all terms
  update/actor_policy_loss [loss]: the actor's PPO loss alone
  update/actor_distill_loss [loss]: lambda_distill times the KL
  update/actor_kl [nats per token]: KL(policy || actor)
  update/actor_ratio [ratio]: the actor's new over old probability
  update/actor_clip [share]: tokens at which the actor's ratio is clipped
  update/actor_importance [weight]: of a token, from the sampler to the actor's
    old policy
  update/actor_gap [nats]: |the actor's log-prob before the update - the
    sampler's|
"""

import dataclasses
from typing import Any, Callable, Mapping

import jax
import jax.numpy as jnp

from jaxrl_llm.learner.options import ActorChoices
from jaxrl_llm.ops import importance, policy_losses
from jaxrl_llm.ops.token_stats import TokenStats, top_k_kl
from jaxrl_llm.types import Array, LearnerBatch

OWN = 'clip_low', 'clip_high', 'kl_target'  # parameters beside those of F
_GAIN, _MOST = 0.1, 0.2  # Of the controller, as Ziegler et al. have them.


@dataclasses.dataclass(frozen=True)
class Training(ActorChoices):
  """Static choices; `distill` is lambda_distill before the first update.

  Attributes:
    controlled: whether a controller holds the KL at `kl_target`.
    importance: F in Eq. 6, as `LearnerConfig.importance`.
  """
  controlled: bool = False
  importance: str | Callable[..., Array] = 'none'

  @property
  def learns(self) -> bool:
    """Whether the actor is trained; else it stays as it starts."""
    return self.ppo or self.distill > 0


def weighted_sum(
    stats: TokenStats, batch: LearnerBatch, weights: Array, distill: Array,
    params: Mapping[str, Array], cfg: Training,
) -> tuple[Array, dict[str, Any]]:
  """Computes a microbatch's part of the actor's loss, and its metrics.

  Args:
    stats: [B, T] of the policy, with `student` of the actor, which has the
      gradient.
    batch: B rows. Without `actor_logprobs`, the actor's old log-probs are its
      present ones.
    weights: [B, T] weights of the tokens, from `policy_losses.token_weights`.
    distill: [] lambda_distill.
    params: OWN, without kl_target if nothing controls the KL, and the
      hyperparameters of F.
    cfg: choices.

  Returns:
    The weighted sum; and the sums over tokens of the metrics.
  """
  mask = batch.mask
  trained = lambda x: jnp.where(mask, x, 0.0)
  new, behaviour = trained(stats.student.logprobs), trained(
      batch.behaviour_logprobs)
  old = (jax.lax.stop_gradient(new) if batch.actor_logprobs is None
         else trained(batch.actor_logprobs))
  weights = trained(weights)
  # Only the actor's side has a gradient: the policy is not drawn to it.
  kl, k = stats.student.kl, cfg.distill_top_k
  if k:
    kl = top_k_kl(jax.lax.stop_gradient(stats.top_logprobs[..., :k]),
                  stats.student.top_logprobs[..., :k])
  kl = trained(kl)
  distilled = distill * jnp.sum(weights * kl)
  total = distilled
  sums = dict(actor_kl=kl)
  if cfg.ppo:
    policy = policy_losses.clip(
        new, old, batch.advantages, mask, clip_low=params['clip_low'],
        clip_high=params['clip_high'])
    # F corrects from the sampler's numbers to the actor's before its update.
    weight = importance.correction(cfg.importance)(
        old - behaviour, mask, **{
            name: value for name, value in params.items() if name not in OWN})
    learned = jnp.sum(weights * weight * policy.loss)
    total += learned
    sums.update(
        actor_ratio=policy.ratio, actor_importance=weight,
        actor_clip=policy.clipped_low | policy.clipped_high)
  sums['actor_gap'] = jnp.abs(old - behaviour)
  sums = jax.tree.map(lambda x: jnp.sum(trained(x)), sums)
  sums.update(actor_loss=total, actor_distill_loss=distilled)
  if cfg.ppo:
    sums['actor_policy_loss'] = learned
  return total, jax.lax.stop_gradient(sums)


def controlled(
    distill: Array, kl: Array, params: Mapping[str, Array],
    cfg: Training) -> Array:
  """Computes the next lambda_distill.

    lambda (1 + .1 clip(KL / kl_target - 1, -.2, .2))

  so that it moves by at most 2% in an update. This is the controller of Ziegler
  et al. (2019, arXiv:1909.08593, Sec. 2.2).

  Args:
    distill: [] lambda_distill of this update.
    kl: [] mean KL of its tokens.
    params: as in `weighted_sum`.
    cfg: choices.
  """
  if not cfg.controlled:
    return distill
  error = jnp.clip(kl / params['kl_target'] - 1.0, -_MOST, _MOST)
  return distill * (1.0 + _GAIN * error)
