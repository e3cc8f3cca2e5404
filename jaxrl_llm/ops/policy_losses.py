"""Policy-gradient objectives per token, and aggregation to the batch's loss.

An objective maps the sampled tokens' log-probs under the new and the old
policy to a loss per token. `token_weights` gives the weight of each token. The
loss of a batch is sum(weights * loss). Weights are computed once for the whole
batch, so microbatches and devices only add their parts.

Other libraries name pairs of objective and aggregation. TRL's `loss_type`:

  grpo             clip, sequence_mean
  bnpo             clip, token_mean (in TRL, for each microbatch separately)
  dr_grpo          clip, constant with budget=max_completion_length
  dapo             clip, token_mean; clip-higher is clip_high > clip_low
  cispo            cispo, token_mean, clip_low=1, clip_high=epsilon_high - 1
  sapo             sapo, sequence_mean
  vespo            vespo, token_mean
  grpo with importance_sampling_level='sequence'    gspo, sequence_mean
  delta=d          dual_clip=d

Masked positions may hold anything, NaN and infinities included. Ratios are at
most e^20, see `importance.bounded_exp`.
"""

import math
from typing import Annotated, Any, NamedTuple, Optional, Union

import chex
import jax
import jax.numpy as jnp

from jaxrl_llm.ops.importance import (
  bounded_exp,
  geometric_mean,
  MAX_LOG_RATIO,
)

Array = jax.Array
Scalar = Union[float, Array]
_LEAST_LOG_RATIO = math.log(1e-8)  # of a response, in VESPO


class PolicyLoss(NamedTuple):
  """The loss and the ratio of each token.

  Attributes:
    loss: [B, T] float32, minimised; 0 where masked.
    ratio: [B, T] float32, the token's new probability divided by its old one
      (gspo: the response's length-normalised ratio); 1 where masked.
    clipped_low: [B, T] bool, whether the lower bound took effect.
    clipped_high: [B, T] bool, whether the upper bound took effect.
  """
  loss: Array
  ratio: Array
  clipped_low: Array
  clipped_high: Array


def with_metrics(found: Any) -> tuple[Any, Any]:
  """Returns the PolicyLoss of an objective, and its metrics.

  Args:
    found: of the objective: a PolicyLoss, or (PolicyLoss, metrics). Metrics are
      name to [B, T], or to [] for all tokens of the mask.
  """
  pair = isinstance(found, tuple) and not isinstance(found, PolicyLoss)
  return found if pair and len(found) == 2 else (found, {})


def by_token(advantages: Array) -> Array:
  """Returns advantages [B] or [B, T] as [B, 1] or [B, T]."""
  return advantages if advantages.ndim == 2 else advantages[:, None]


def _inputs(new, old, advantages, mask):
  """Returns log-ratio and advantages, zeros where masked; and the bool mask."""
  chex.assert_rank([new, old, mask], 2)
  chex.assert_equal_shape([new, old, mask])
  chex.assert_rank(advantages, {1, 2})
  chex.assert_equal_shape_prefix([new, advantages], advantages.ndim)
  mask = jnp.asarray(mask, bool)
  log_ratio = jnp.where(mask, new - jax.lax.stop_gradient(old), 0.0)
  advantages = jnp.where(
      mask, jax.lax.stop_gradient(by_token(advantages)), 0.0)
  return log_ratio.astype(jnp.float32), advantages, mask


def _clipped_surrogate(ratio, advantages, clip_low, clip_high, dual_clip):
  """Returns -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), by cases."""
  clipped_low = (advantages < 0) & (ratio < 1 - clip_low)
  clipped_high = (advantages > 0) & (ratio > 1 + clip_high)
  bounded = jnp.where(clipped_low, 1 - clip_low, ratio)
  bounded = jnp.where(clipped_high, 1 + clip_high, bounded)
  if dual_clip is not None:
    too_bad = (advantages < 0) & (ratio > dual_clip)
    bounded = jnp.where(too_bad, dual_clip, bounded)
  return PolicyLoss(-bounded * advantages, ratio, clipped_low, clipped_high)


def _unclipped(loss, ratio):
  """Returns the PolicyLoss of an objective that clips no token."""
  nowhere = jnp.zeros_like(loss, bool)
  return PolicyLoss(loss, ratio, nowhere, nowhere)


def clip(
    new: Array,
    old: Array,
    advantages: Array,
    mask: Array,
    *,
    clip_low: Annotated[Scalar, '[0, 1]'] = 0.2,
    clip_high: Annotated[Scalar, '[0, inf]'] = 0.2,
    dual_clip: Annotated[Optional[Scalar], '(1, inf)'] = None,
) -> PolicyLoss:
  """Computes PPO's clipped surrogate per token.

    L_t = -min(r_t A, clip(r_t, 1 - clip_low, 1 + clip_high) A),
    r_t = new_t / old_t

  PPO: Schulman et al., 2017, eq. 7. Separate bounds: DAPO (Yu et al., 2025,
  arXiv:2503.14476). Dual clip (Ye et al., 2019, arXiv:1912.09729): where A < 0
  the loss is at most -dual_clip A, however large the ratio.

  Args:
    new: [B, T] log-probs under the policy being updated.
    old: [B, T] log-probs under the policy at the step of the rollout.
    advantages: [B] or [B, T].
    mask: [B, T], tokens that count.
    clip_low: the ratio's lower bound is 1 - clip_low.
    clip_high: its upper bound is 1 + clip_high.
    dual_clip: upper bound, above 1, of the ratio where A < 0; None for none.

  Returns:
    PolicyLoss. A token is `clipped` where the clip removes its gradient: where
    the advantage pushes the ratio further out of bounds. Tokens that only the
    dual clip bounds are not counted.
  """
  log_ratio, advantages, _ = _inputs(new, old, advantages, mask)
  return _clipped_surrogate(
      bounded_exp(log_ratio), advantages, clip_low, clip_high, dual_clip)


def gspo(
    new: Array,
    old: Array,
    advantages: Array,
    mask: Array,
    *,
    clip_low: Annotated[Scalar, '[0, 1]'] = 3e-4,
    clip_high: Annotated[Scalar, '[0, inf]'] = 4e-4,
    dual_clip: Annotated[Optional[Scalar], '(1, inf)'] = None,
) -> PolicyLoss:
  """Computes GSPO's clipped surrogate of the response's ratio.

    s = exp(mean over tokens of log(new_t / old_t)),
    L_t = -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A) at each token

  Zheng et al., 2025, arXiv:2507.18071. With aggregation 'sequence_mean' this is
  the paper's loss. s stays much closer to 1 than a token's ratio: the paper's
  bounds are 3e-4 and 4e-4.

  Args:
    new: [B, T] log-probs under the policy being updated.
    old: [B, T] log-probs under the policy at the step of the rollout.
    advantages: [B] or [B, T].
    mask: [B, T], tokens that count.
    clip_low: the lower bound of s is 1 - clip_low.
    clip_high: its upper bound is 1 + clip_high.
    dual_clip: upper bound, above 1, of s where A < 0; None for none.

  Returns:
    PolicyLoss; each token has the `ratio` and the flags of its response.
  """
  log_ratio, advantages, mask = _inputs(new, old, advantages, mask)
  ratio = jnp.where(mask, geometric_mean(log_ratio, mask), 1.0)
  return _clipped_surrogate(ratio, advantages, clip_low, clip_high, dual_clip)


def cispo(
    new: Array,
    old: Array,
    advantages: Array,
    mask: Array,
    *,
    clip_low: Annotated[Scalar, '[0, 1]'] = 0.2,
    clip_high: Annotated[Scalar, '[0, inf]'] = 0.2,
) -> PolicyLoss:
  """Computes CISPO, the policy gradient weighted by the clipped ratio.

    L_t = -SG(clip(r_t, 1 - clip_low, 1 + clip_high)) A log new_t

  MiniMax, 2025, arXiv:2506.13585. Clipped tokens keep their gradient. The paper
  has no lower bound: clip_low=1.

  Args:
    new: [B, T] log-probs under the policy being updated.
    old: [B, T] log-probs under the policy at the step of the rollout.
    advantages: [B] or [B, T].
    mask: [B, T], tokens that count.
    clip_low: the weight's lower bound is 1 - clip_low.
    clip_high: its upper bound is 1 + clip_high.

  Returns:
    PolicyLoss. A token is `clipped` where its weight differs from its ratio.
  """
  log_ratio, advantages, mask = _inputs(new, old, advantages, mask)
  ratio = bounded_exp(log_ratio)
  weight = jax.lax.stop_gradient(jnp.clip(ratio, 1 - clip_low, 1 + clip_high))
  return PolicyLoss(
      loss=-weight * advantages * jnp.where(mask, new, 0.0),
      ratio=ratio,
      clipped_low=ratio < 1 - clip_low,
      clipped_high=ratio > 1 + clip_high)


def no_clip(
    new: Array,
    old: Array,
    advantages: Array,
    mask: Array,
) -> PolicyLoss:
  """Computes the plain policy gradient, without ratio or clip.

    L_t = -(new_t / SG(new_t)) A, with gradient -A grad log new_t

  Off-policy corrections, if wanted, are weights that multiply it, see
  `importance`.

  Args:
    new: [B, T] log-probs under the policy being updated.
    old: [B, T] log-probs under the policy at the step of the rollout; used only
      for the reported ratio.
    advantages: [B] or [B, T].
    mask: [B, T], tokens that count.

  Returns:
    PolicyLoss, with no token clipped.
  """
  log_ratio, advantages, _ = _inputs(new, old, advantages, mask)
  one = jnp.exp(log_ratio - jax.lax.stop_gradient(log_ratio))
  return _unclipped(
      -one * advantages, bounded_exp(jax.lax.stop_gradient(log_ratio)))


def sapo(
    new: Array,
    old: Array,
    advantages: Array,
    mask: Array,
    *,
    tau_positive: Annotated[Scalar, '(0, inf)'] = 1.0,
    tau_negative: Annotated[Scalar, '(0, inf)'] = 1.05,
) -> PolicyLoss:
  """Computes SAPO, whose gradient fades as the ratio leaves 1.

    L_t = -(4 / tau) sigmoid(tau (r_t - 1)) A, with gradient
    -4 p (1 - p) A grad r_t, where p = sigmoid(tau (r_t - 1))

  tau is tau_positive where A > 0, else tau_negative. Soft Adaptive Policy
  Optimization, 2025, arXiv:2511.20347. The equation and the defaults are those
  of TRL 1.16; the paper's own text was not read.

  Args:
    new: [B, T] log-probs under the policy being updated.
    old: [B, T] log-probs under the policy at the step of the rollout.
    advantages: [B] or [B, T].
    mask: [B, T], tokens that count.
    tau_positive: how fast the gradient fades where A > 0.
    tau_negative: the same elsewhere.

  Returns:
    PolicyLoss, with no token clipped.
  """
  log_ratio, advantages, _ = _inputs(new, old, advantages, mask)
  ratio = bounded_exp(log_ratio)
  tau = jnp.where(advantages > 0, tau_positive, tau_negative)
  return _unclipped(
      -jax.nn.sigmoid(tau * (ratio - 1)) * 4 / tau * advantages, ratio)


def vespo(
    new: Array,
    old: Array,
    advantages: Array,
    mask: Array,
    *,
    k_positive: Annotated[Scalar, '[0, inf)'] = 2.0,
    lambda_positive: Annotated[Scalar, '(0, inf)'] = 3.0,
    k_negative: Annotated[Scalar, '[0, inf)'] = 3.0,
    lambda_negative: Annotated[Scalar, '(0, inf)'] = 2.0,
) -> PolicyLoss:
  """Computes VESPO, the policy gradient weighted by the response's ratio.

    L_t = -SG(phi(w)) A log new_t, phi(w) = w^k exp(lambda (1 - w)),
    w = product over tokens of new_t / old_t

  phi(1) = 1. k and lambda depend on the sign of A; 0 counts as positive. w is
  not normalised by the length. Variational Sequence-Level Soft Policy
  Optimization, 2026, arXiv:2602.10693. The equation, the defaults and the
  bounds of w (1e-8 and e^20; e^-20 and e^20 for each token) are those of TRL
  1.16; the paper's own text was not read. TRL multiplies w by the correction
  for the sampler; here that is `loss.importance`, a weight of its own.

  Args:
    new: [B, T] log-probs under the policy being updated.
    old: [B, T] log-probs under the policy at the step of the rollout.
    advantages: [B] or [B, T].
    mask: [B, T], tokens that count.
    k_positive: power of w where A >= 0: small w count less.
    lambda_positive: decay where A >= 0: large w count less.
    k_negative: power elsewhere.
    lambda_negative: decay elsewhere.

  Returns:
    PolicyLoss, with no token clipped; each token has the `ratio` w of its
    response.
  """
  log_ratio, advantages, mask = _inputs(new, old, advantages, mask)
  log_w = jnp.sum(jnp.clip(
      jax.lax.stop_gradient(log_ratio), -MAX_LOG_RATIO, MAX_LOG_RATIO),
                  axis=1, keepdims=True)
  log_w = jnp.clip(log_w, _LEAST_LOG_RATIO, MAX_LOG_RATIO)
  w, positive = jnp.exp(log_w), advantages >= 0
  decay = jnp.where(positive, lambda_positive, lambda_negative)
  phi = jnp.exp(
      jnp.where(positive, k_positive, k_negative) * log_w + decay * (1 - w))
  return _unclipped(
      -phi * advantages * jnp.where(mask, new, 0.0), jnp.where(mask, w, 1.0))


def gmpo(
    new: Array,
    old: Array,
    advantages: Array,
    mask: Array,
    *,
    log_clip_low: Annotated[Scalar, '[0, inf]'] = 0.4,
    log_clip_high: Annotated[Scalar, '[0, inf]'] = 0.4,
) -> PolicyLoss:
  """Computes GMPO, with the geometric mean of the clipped ratios of tokens.

    L_t = -s A at each token, s = exp(mean over tokens of c_t),
    c_t = min(log r_t, log_clip_high) where A > 0,
          max(log r_t, -log_clip_low) where A < 0

  Geometric-Mean Policy Optimization, 2025, arXiv:2507.20673. Unlike `gspo`, it
  clips tokens, before the mean, and has no bound on s. With aggregation
  'sequence_mean' this is the paper's loss. The equation and the bounds, e^-0.4
  and e^0.4, are from second hand: the paper's own text was not read.

  Args:
    new: [B, T] log-probs under the policy being updated.
    old: [B, T] log-probs under the policy at the step of the rollout.
    advantages: [B] or [B, T].
    mask: [B, T], tokens that count.
    log_clip_low: the lower bound of log r_t is -log_clip_low.
    log_clip_high: its upper bound.

  Returns:
    PolicyLoss; each token has the `ratio` s of its response, and a token is
    `clipped` where the clip removes its gradient.
  """
  log_ratio, advantages, mask = _inputs(new, old, advantages, mask)
  clipped_low = (advantages < 0) & (log_ratio < -log_clip_low)
  clipped_high = (advantages > 0) & (log_ratio > log_clip_high)
  bounded = jnp.where(clipped_low, -log_clip_low, log_ratio)
  bounded = jnp.where(clipped_high, log_clip_high, bounded)
  ratio = jnp.where(mask, geometric_mean(bounded, mask), 1.0)
  return PolicyLoss(-ratio * advantages, ratio, clipped_low, clipped_high)


def dppo(
    new: Array,
    old: Array,
    advantages: Array,
    mask: Array,
    *,
    divergence: Annotated[Scalar, '[0, 1]'] = 0.2,
) -> PolicyLoss:
  """Computes DPPO, which masks tokens whose probability has moved too far.

    L_t = -M_t r_t A, with M_t = 0 where |new_t - old_t| > divergence and the
    update would raise it: A > 0 and r_t > 1, or A < 0 and r_t < 1; else 1

  |new_t - old_t| is the total variation between the policies, if all tokens but
  the sampled one count as a single other. Ratios are not clipped: a rare token
  may become many times as likely. Divergence PPO, 2026, arXiv:2602.04879, eq.
  11 to 13, as public implementations quote them, with their threshold: the
  paper's own text was not read. Its `old` is the policy that wrote the tokens,
  as it is here where no row is stale.

  Args:
    new: [B, T] log-probs under the policy being updated.
    old: [B, T] log-probs under the policy at the step of the rollout.
    advantages: [B] or [B, T].
    mask: [B, T], tokens that count.
    divergence: largest difference of the probabilities.

  Returns:
    PolicyLoss. A token is `clipped` where it is masked by M.
  """
  log_ratio, advantages, mask = _inputs(new, old, advantages, mask)
  ratio = bounded_exp(log_ratio)
  moved = jax.lax.stop_gradient(
      jnp.where(mask, jnp.exp(new) - jnp.exp(old), 0.0))
  clipped_low = (advantages < 0) & (moved < -divergence)
  clipped_high = (advantages > 0) & (moved > divergence)
  kept = jnp.where(clipped_low | clipped_high, 0.0, advantages)
  return PolicyLoss(-ratio * kept, ratio, clipped_low, clipped_high)


OBJECTIVES = dict(
    clip=clip, gspo=gspo, cispo=cispo, no_clip=no_clip, sapo=sapo, vespo=vespo,
    gmpo=gmpo, dppo=dppo)
AGGREGATIONS = ('sequence_mean', 'token_mean', 'constant')


def token_weights(
    mask: Array,
    aggregation: str,
    *,
    where: Optional[Array] = None,
    budget: Optional[Scalar] = None,
) -> Array:
  """Computes the weight of each token's loss in the batch's loss.

    sequence_mean  1 / (tokens of its row * rows)    GRPO, GSPO
    token_mean     1 / tokens of the batch           DAPO
    constant       1 / (rows * budget)               Dr. GRPO

  Args:
    mask: [B, T], tokens that count, of the whole batch.
    aggregation: one of AGGREGATIONS.
    where: [B] bool, rows that count; None for all. A row that counts is part of
      the number of rows even if all its tokens are masked.
    budget: response tokens allowed, for 'constant'.

  Returns:
    [B, T] float32, 0 where masked.

  Raises:
    ValueError: the aggregation is unknown, or 'constant' has no budget.
  """
  chex.assert_rank(mask, 2)
  mask = jnp.asarray(mask, bool)
  if where is None:
    where = jnp.ones(mask.shape[0], bool)
  chex.assert_shape(where, mask.shape[:1])
  weights = (mask & where[:, None]).astype(jnp.float32)
  rows = jnp.maximum(jnp.sum(where, dtype=jnp.float32), 1)
  if aggregation == 'sequence_mean':
    tokens = jnp.sum(weights, axis=1, keepdims=True)
    return weights / (jnp.maximum(tokens, 1) * rows)
  if aggregation == 'token_mean':
    return weights / jnp.maximum(jnp.sum(weights), 1)
  if aggregation == 'constant':
    if budget is None:
      raise ValueError(
          "aggregation='constant' divides by the token budget of a response: "
          'pass budget=.')
    return weights / (rows * budget)
  raise ValueError(
      f'aggregation={aggregation!r} is not known: use one of '
      f"{', '.join(AGGREGATIONS)}.")


def aggregate(
    loss: Array,
    mask: Array,
    aggregation: str,
    *,
    where: Optional[Array] = None,
    budget: Optional[Scalar] = None,
) -> Array:
  """Computes the batch's loss, the sum of `token_weights` times token losses.

  Args:
    loss: [B, T] loss per token.
    mask: [B, T], tokens that count.
    aggregation: one of AGGREGATIONS.
    where: [B] bool, rows that count; None for all.
    budget: response tokens allowed, for 'constant'.

  Returns:
    The loss, a scalar.
  """
  chex.assert_equal_shape([loss, mask])
  weights = token_weights(mask, aggregation, where=where, budget=budget)
  return jnp.sum(weights * jnp.where(weights > 0, loss, 0.0))
