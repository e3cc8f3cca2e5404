"""The loss of tokens, from their log-probs: what the learner minimises.

Log-probs are float32 and of the tempered policy, softmax(logits / temperature).
"""

from typing import Any, Optional

from flax import struct
import jax
import jax.numpy as jnp

from jaxrl_llm.ops import importance, kl, policy_losses
from jaxrl_llm.types import Array, LearnerBatch


@struct.dataclass
class LossParams:
  """Numbers of the loss: traced, so that changing one compiles nothing.

  Attributes:
    temperature: [] of the policy that is trained; the sampler's.
    clip_low: [] ratios below 1 - clip_low are clipped.
    clip_high: [] ratios above 1 + clip_high are clipped.
    entropy_bonus: [] weight of the entropy, in nats.
    kl_coef: [] weight of the KL to the anchor.
    importance_low: [] IcePop's lower bound of the weight.
    importance_cap: [] upper bound of an importance weight.
    budget: [] tokens that aggregation 'constant' divides each row by.
    dual_clip: [] bound of the loss at negative advantages; None is off.
  """
  temperature: Array
  clip_low: Array
  clip_high: Array
  entropy_bonus: Array
  kl_coef: Array
  importance_low: Array
  importance_cap: Array
  budget: Array
  dual_clip: Optional[Array] = None


def likelihood(new, old, advantages, mask, **unused_clips):
  """Supervised learning: -log p(token), weighted by the row's advantage."""
  del old
  loss = -new * jnp.where(mask, advantages[:, None], 0.0)
  nowhere = jnp.zeros_like(mask)
  return policy_losses.PolicyLoss(loss, jnp.ones_like(new), nowhere, nowhere)


OBJECTIVES = dict(policy_losses.OBJECTIVES, likelihood=likelihood)

# What a correction takes from LossParams.
_THRESHOLDS = dict(
    tis=dict(cap='importance_cap'),
    icepop=dict(low='importance_low', high='importance_cap'),
    sequence_tis=dict(cap='importance_cap'))


def check(
    objective: str, aggregation: str, correction: str, kl_estimator: str):
  """Raises ValueError for names that are not known, or do not go together."""
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
        f"importance={correction!r} has no meaning for the objective "
        "'likelihood', whose rows no policy drew: use 'none'.")


def weighted_sum(
    new: Array,
    entropy: Array,
    batch: LearnerBatch,
    weights: Array,
    loss: LossParams,
    *,
    objective: str,
    correction: str,
    kl_estimator: str,
) -> tuple[Array, Any]:
  """A microbatch's part of the loss, and its sums and maxima for metrics.

  With w the tokens' weights and F the importance weight:

    sum_t w_t (F_t L_t - entropy_bonus H_t + kl_coef KL_t)

  Args:
    new: [B, t] log-probs of the policy that is trained, which has the
      gradient; t is at most T.
    entropy: [B, t] of that policy, nats.
    batch: the rows; without old log-probs, `new` stands for them.
    weights: [B, T] of the tokens, from `policy_losses.token_weights`.
    loss: numbers.
    objective: key of OBJECTIVES.
    correction: key of `importance.CORRECTIONS`.
    kl_estimator: key of `kl.KL_ESTIMATORS`.

  Returns:
    The sum [], and (sums, maxima), dictionaries of [] without gradient.
  """
  mask = batch.mask[:, :new.shape[1]]

  def trained(x):
    # What other tokens hold must not reach the loss, not even as 0 * inf.
    return jnp.where(mask, x[:, :mask.shape[1]], 0.0)

  new, entropy = trained(new), trained(entropy)
  old = (jax.lax.stop_gradient(new) if batch.old_logprobs is None
         else trained(batch.old_logprobs))
  gap = old - trained(batch.behaviour_logprobs)

  policy = OBJECTIVES[objective](
      new, old, batch.advantages, mask, clip_low=loss.clip_low,
      clip_high=loss.clip_high, dual_clip=loss.dual_clip)
  thresholds = {name: getattr(loss, field) for name, field
                in _THRESHOLDS.get(correction, {}).items()}
  weight = importance.CORRECTIONS[correction](gap, mask, **thresholds)
  capped = (weight >= loss.importance_cap) | (weight == 0.0)
  weighted = weight * policy.loss
  token_loss = weighted - loss.entropy_bonus * entropy
  sums = {}
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
      kl_old=kl.k3(new, old), behaviour_gap=jnp.abs(gap), importance=weight,
      importance_capped=capped & bool(thresholds))
  sums = jax.tree.map(lambda x: jnp.sum(trained(x)), sums)
  sums.update(
      loss=total, policy_loss=jnp.sum(weights * weighted),
      tokens=jnp.sum(mask, dtype=jnp.float32))
  maxima = dict(
      ratio_max=jnp.max(trained(policy.ratio)),
      behaviour_gap_max=jnp.max(jnp.abs(gap)))
  return total, jax.lax.stop_gradient((sums, maxima))
