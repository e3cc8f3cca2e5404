"""The learner's loss, computed from the log-probs of tokens.

Log-probs are float32, under the tempered policy softmax(logits / temperature).

Metrics are means over the tokens that an update trains on, unless they say
otherwise.

Metrics:
  update/loss [loss]: weighted sum over the tokens, of all terms
  update/policy_loss [loss]: the surrogate alone
  update/tokens [tokens]: trained on, summed over the updates
  update/entropy [nats per token]: entropy of the policy in training
  update/clip_low [share]: tokens whose ratio the lower bound clipped
  update/clip_high [share]: tokens whose ratio the upper bound clipped
  update/ratio [ratio]: new over old probability
  update/ratio_max [ratio]: the largest new over old probability
  update/kl_old [nats per token]: KL(new || old) of the policy, estimated by k3
  update/behaviour_gap [nats]: |log-prob before the update - log-prob of the
    sampler|
  update/behaviour_gap_max [nats]: the largest such difference
  update/importance [weight]: of a token, for the policy that wrote it
  update/importance_capped [share]: tokens whose weight is at its cap, or 0
  update/kl_anchor [nats per token]: KL to the policy that RL started from, with
    loss.kl_coef
"""

import functools
from typing import Any, Optional

from flax import struct
import jax
import jax.numpy as jnp

from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.learner.options import LossChoices, LossWeights
from jaxrl_llm.ops import importance, kl, obrs, policy_losses
from jaxrl_llm.types import Array, LearnerBatch


@struct.dataclass(kw_only=True)
class LossParams(LossWeights):
  """Hyperparameters of the loss; traced, so new values never recompile.

  Those of `LossWeights` are [].

  Attributes:
    temperature: [] temperature of the trained policy, equal to the sampler's.
    budget: [] tokens, the divisor of each row in aggregation 'constant'.
    objective: name to [], hyperparameters of the objective.
    importance: name to [], thresholds of the importance correction.
    term: name to [], hyperparameters of the further term.
    rejection: name to [], lam, c1 and c2; empty without rejection.
    actor: numbers of `actor.weighted_sum`; empty if the actor is the policy.
  """
  temperature: Array
  budget: Array
  objective: dict[str, Array]
  importance: dict[str, Array]
  term: dict[str, Array] = struct.field(default_factory=dict)
  rejection: dict[str, Array] = struct.field(default_factory=dict)
  actor: dict[str, Array] = struct.field(default_factory=dict)


def by_token(advantages: Array) -> Array:
  """Returns advantages [B] or [B, T] as [B, 1] or [B, T]."""
  return advantages if advantages.ndim == 2 else advantages[:, None]


def advantages_of(batch: LearnerBatch) -> Array:
  """Returns the advantages of a batch, [B] or, if they are by token, [B, T]."""
  if batch.token_advantages is None:
    return batch.advantages
  return jnp.where(batch.mask, batch.token_advantages, 0.0)


def named(function: Any, batch: LearnerBatch) -> dict[str, Array]:
  """Returns the columns that a function names; 0 at tokens that are masked."""
  found = {name: batch.columns[name] for name in getattr(
      function, 'columns', ()) if name in batch.columns}
  return {
      name: jnp.where(
          jnp.expand_dims(batch.mask, range(1, x.ndim - 1)), x,
          jnp.zeros((), x.dtype))
      if batch.declared[name].axes[-1:] == 'T' else x
      for name, x in found.items()}


def likelihood(new, old, advantages, mask):
  """Computes the supervised loss, -log p(token) times the row's advantage."""
  del old
  loss = -new * jnp.where(mask, by_token(advantages), 0.0)
  nowhere = jnp.zeros_like(mask)
  return policy_losses.PolicyLoss(loss, jnp.ones_like(new), nowhere, nowhere)


OBJECTIVES = dict(policy_losses.OBJECTIVES, likelihood=likelihood)


def weighted_sum(
    new: Array,
    entropy: Array,
    batch: LearnerBatch,
    weights: Array,
    loss: LossParams,
    *,
    cfg: LossChoices,
    rejection: Optional[rejection_lib.Context] = None,
) -> tuple[Array, Any]:
  """Computes a microbatch's part of the loss, and its metrics.

  With the tokens' weights w and the importance weights F, the loss is

    sum_t w_t (F_t L_t - entropy_bonus H_t + kl_coef KL_t + X_t)

  Under rejection, F_t is the factor of `rejection.factors`. X is the further
  term `loss.term`.

  Args:
    new: [B, T] log-probs under the trained policy, with gradient.
    entropy: [B, T] entropy of the trained policy, nats.
    batch: the rows; without old log-probs, `new` is used in their place.
    weights: [B, T] weights of tokens, from `policy_losses.token_weights`.
    loss: hyperparameters.
    cfg: static choices.
    rejection: of tokens that another policy wrote; None keeps all.

  Returns:
    The loss [], and (sums, maxima, rows) without gradient: dictionaries of []
    for the metrics, the objective's own under 'objective', and of [B], the mean
    `entropy` and the `clip_share` of each row's trained tokens.
  """
  mask = batch.mask

  def trained(x):
    # Masked tokens must not reach the loss, not even as 0 * inf.
    return jnp.where(mask, x, 0.0)

  new, entropy, weights = map(trained, (new, entropy, weights))
  # In the first update after a rollout the new policy is the old one. Its own
  # log-probs make every ratio exactly 1; those of another program would not.
  old = (jax.lax.stop_gradient(new) if batch.old_logprobs is None
         else trained(batch.old_logprobs))
  logprobs = obrs.Logprobs(new, old, trained(batch.behaviour_logprobs))
  gap = old - logprobs.behaviour
  policy, own = _surrogate(new, old, batch, loss, cfg)
  weight, sums, counts = _importance(logprobs, batch, loss, cfg, rejection)
  weighted = weight * policy.loss
  token_loss = weighted - loss.entropy_bonus * entropy
  if batch.anchor_logprobs is not None:
    divergence = kl.KL_ESTIMATORS[cfg.kl_estimator](
        new, trained(batch.anchor_logprobs))
    token_loss += loss.kl_coef * divergence
    sums['kl_anchor'] = divergence
  if callable(cfg.term):
    further, more = policy_losses.with_metrics(cfg.term(
        new, old, entropy, mask, **loss.term, **named(cfg.term, batch)))
    token_loss, own = token_loss + trained(further), {**own, **more}
  total = jnp.sum(weights * token_loss)

  sums.update(
      entropy=entropy, clip_low=policy.clipped_low,
      clip_high=policy.clipped_high, ratio=policy.ratio,
      kl_old=kl.k3(new, old), behaviour_gap=jnp.abs(gap),
      **({'objective': own} if own else {}))
  # Sums, not means: the denominators are those of the whole batch, whatever
  # microbatch a row is in.
  sums = jax.tree.map(lambda x: jnp.sum(trained(x)), sums)
  sums.update(
      counts, loss=total, policy_loss=jnp.sum(weights * weighted),
      tokens=jnp.sum(mask, dtype=jnp.float32))
  count = jnp.maximum(jnp.sum(mask, 1), 1)
  rows = dict(
      entropy=jnp.sum(entropy, 1) / count, clip_share=jnp.sum(trained(
          policy.clipped_low | policy.clipped_high), 1) / count)
  maxima = dict(
      ratio_max=jnp.max(trained(policy.ratio)),
      behaviour_gap_max=jnp.max(jnp.abs(gap)))
  return total, jax.lax.stop_gradient((sums, maxima, rows))


def _surrogate(new, old, batch, loss, cfg):
  """Computes the PolicyLoss of the objective, and its own metrics."""
  objective = OBJECTIVES.get(cfg.objective, cfg.objective)
  policy, own = policy_losses.with_metrics(objective(
      new, old, advantages_of(batch), batch.mask, **loss.objective,
      **named(objective, batch)))
  if callable(cfg.objective):  # the user's may leave anything where masked
    policy = policy._replace(loss=jnp.where(batch.mask, policy.loss, 0.0))
  return policy, own


def _importance(logprobs, batch, loss, cfg, rejection):
  """Computes the factors that the tokens' losses get for who wrote them.

  Args:
    logprobs: [B, T], 0 where masked.
    batch: the rows.
    loss: hyperparameters.
    cfg: static choices.
    rejection: of the microbatch, or None.

  Returns:
    [B, T] factors; metrics, name to [B, T]; and, under rejection, the sums
    that its calibration needs.
  """
  mask = batch.mask
  correct = functools.partial(
      importance.correction(cfg.importance), **loss.importance,
      **named(cfg.importance, batch))
  if rejection is not None:
    facts, factor, metrics = rejection_lib.factors(
        rejection, logprobs, advantages_of(batch), mask, loss.rejection,
        aggregation=cfg.aggregation, clipped=cfg.objective != 'no_clip',
        correction=None if cfg.importance == 'none' else correct)
    return factor, metrics, dict(
        rejection=rejection_lib.counts(rejection.cfg, facts, mask))
  weight = correct(logprobs.old - logprobs.behaviour, mask)
  capped = jnp.zeros_like(mask)
  if 'cap' in loss.importance:
    capped = (weight >= loss.importance['cap']) | (weight == 0.0)
  return weight, dict(importance=weight, importance_capped=capped), {}
