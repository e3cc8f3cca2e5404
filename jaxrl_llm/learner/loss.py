"""The learner's loss, computed from the log-probs of tokens.

Log-probs are float32, under the tempered policy softmax(logits / temperature).
"""

import functools
from typing import Any, Optional

from flax import struct
import jax
import jax.numpy as jnp

from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.ops import importance, kl, policy_losses
from jaxrl_llm.types import Array, LearnerBatch


@struct.dataclass
class LossParams:
  """Hyperparameters of the loss; traced, so new values never recompile.

  Attributes:
    temperature: [] temperature of the trained policy, equal to the sampler's.
    entropy_bonus: [] weight of the entropy in nats.
    kl_coef: [] weight of the KL to the anchor.
    budget: [] tokens, the divisor of each row in aggregation 'constant'.
    objective: name to [], hyperparameters of the objective.
    importance: name to [], thresholds of the importance correction.
    rejection: name to [], lam, c1 and c2; empty without rejection.
    actor: numbers of `actor.weighted_sum`; empty if the actor is the policy.
  """
  temperature: Array
  entropy_bonus: Array
  kl_coef: Array
  budget: Array
  objective: dict[str, Array]
  importance: dict[str, Array]
  rejection: dict[str, Array] = struct.field(default_factory=dict)
  actor: dict[str, Array] = struct.field(default_factory=dict)


def likelihood(new, old, advantages, mask):
  """Computes the supervised loss, -log p(token) times the row's advantage."""
  del old
  loss = -new * jnp.where(mask, advantages[:, None], 0.0)
  nowhere = jnp.zeros_like(mask)
  return policy_losses.PolicyLoss(loss, jnp.ones_like(new), nowhere, nowhere)


OBJECTIVES = dict(policy_losses.OBJECTIVES, likelihood=likelihood)


def check(
    objective: str, aggregation: str, correction: str, kl_estimator: str):
  """Raises ValueError for unknown names or a combination with no meaning."""
  for name, value, known in (
      ('objective', objective, OBJECTIVES),
      ('aggregation', aggregation, policy_losses.AGGREGATIONS),
      ('importance', correction, importance.CORRECTIONS),
      ('kl_estimator', kl_estimator, kl.KL_ESTIMATORS)):
    if value not in known:
      raise ValueError(
          f'{name}={value!r} is not known: use one of {", ".join(known)}.')
  if objective == 'likelihood' and correction != 'none':
    raise ValueError(
        f"importance={correction!r} has no meaning with objective='likelihood',"
        " because no policy sampled the rows: use importance='none'.")


def weighted_sum(
    new: Array,
    entropy: Array,
    batch: LearnerBatch,
    weights: Array,
    loss: LossParams,
    *,
    objective: str,
    aggregation: str,
    correction: str,
    kl_estimator: str,
    rejection: Optional[rejection_lib.Context] = None,
) -> tuple[Array, Any]:
  """Computes a microbatch's part of the loss, and its metrics.

  With the tokens' weights w and the importance weights F, the loss is

    sum_t w_t (F_t L_t - entropy_bonus H_t + kl_coef KL_t)

  Under rejection, F_t is the factor of `rejection.factors`.

  Args:
    new: [B, T] log-probs under the trained policy, with gradient.
    entropy: [B, T] entropy of the trained policy, nats.
    batch: the rows; without old log-probs, `new` is used in their place.
    weights: [B, T] weights of tokens, from `policy_losses.token_weights`.
    loss: hyperparameters.
    objective: key of OBJECTIVES.
    aggregation: one of `policy_losses.AGGREGATIONS`.
    correction: key of `importance.CORRECTIONS`.
    kl_estimator: key of `kl.KL_ESTIMATORS`.
    rejection: of tokens that another policy wrote; None keeps all.

  Returns:
    The loss [], and (sums, maxima, rows) without gradient: dictionaries of []
    for the metrics, and of [B], the mean `entropy` and the `clip_share` of each
    row's trained tokens.
  """
  mask = batch.mask

  def trained(x):
    # Masked tokens must not reach the loss, not even as 0 * inf.
    return jnp.where(mask, x, 0.0)

  new, entropy = trained(new), trained(entropy)
  old = (jax.lax.stop_gradient(new) if batch.old_logprobs is None
         else trained(batch.old_logprobs))
  behaviour = trained(batch.behaviour_logprobs)
  gap = old - behaviour

  policy = OBJECTIVES[objective](
      new, old, batch.advantages, mask, **loss.objective)
  correct = functools.partial(
      importance.CORRECTIONS[correction], **loss.importance)
  if rejection is None:
    weight = correct(gap, mask)
    capped = jnp.zeros_like(mask)
    if 'cap' in loss.importance:
      capped = (weight >= loss.importance['cap']) | (weight == 0.0)
    sums = dict(importance=weight, importance_capped=capped)
  else:
    found, weight, sums = rejection_lib.factors(
        rejection, new, old, behaviour, batch.advantages, mask, loss.rejection,
        aggregation=aggregation, clipped=objective != 'no_clip',
        correction=None if correction == 'none' else correct)
  weighted = weight * policy.loss
  token_loss = weighted - loss.entropy_bonus * entropy
  if batch.anchor_logprobs is not None:
    divergence = kl.KL_ESTIMATORS[kl_estimator](
        new, trained(batch.anchor_logprobs))
    token_loss += loss.kl_coef * divergence
    sums['kl_anchor'] = divergence
  weights = trained(weights)
  total = jnp.sum(weights * token_loss)

  sums.update(
      entropy=entropy, clip_low=policy.clipped_low,
      clip_high=policy.clipped_high, ratio=policy.ratio,
      kl_old=kl.k3(new, old), behaviour_gap=jnp.abs(gap))
  count = jnp.maximum(jnp.sum(mask, 1), 1)
  clipped = policy.clipped_low | policy.clipped_high
  rows = dict(
      entropy=jnp.sum(entropy, 1) / count,
      clip_share=jnp.sum(trained(clipped), 1) / count)
  sums = jax.tree.map(lambda x: jnp.sum(trained(x)), sums)
  if rejection is not None:
    sums['rejection'] = rejection_lib.counts(rejection.cfg, found, mask)
  sums.update(
      loss=total, policy_loss=jnp.sum(weights * weighted),
      tokens=jnp.sum(mask, dtype=jnp.float32))
  maxima = dict(
      ratio_max=jnp.max(trained(policy.ratio)),
      behaviour_gap_max=jnp.max(jnp.abs(gap)))
  return total, jax.lax.stop_gradient((sums, maxima, rows))
