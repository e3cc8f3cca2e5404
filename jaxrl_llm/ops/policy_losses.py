"""Policy-gradient objectives per token, and how tokens add up to a loss.

An objective turns log-probs of the sampled tokens under the new policy and the
old one into a loss per token; `token_weights` says what each token counts for;
the loss of a batch is sum(weights * loss). Weights are made once from the
whole batch, so microbatches and devices just add their parts.

Libraries name pairs of the two. TRL's `loss_type`, in these terms:

  grpo             clip, sequence_mean
  bnpo             clip, token_mean (TRL: of each microbatch by itself)
  dr_grpo          clip, constant with budget=max_completion_length
  dapo             clip, token_mean; clip-higher is clip_high > clip_low
  cispo            cispo, token_mean, clip_low=1, clip_high=epsilon_high - 1
  grpo with importance_sampling_level='sequence'    gspo, sequence_mean
  delta=d          dual_clip=d

What masked positions hold, NaN and infinities too, never matters. Ratios stop
at e^20, see `importance.bounded_exp`.
"""

import inspect
from typing import Any, Callable, NamedTuple, Optional, Union

import chex
import jax
import jax.numpy as jnp

from jaxrl_llm.ops.importance import bounded_exp

Array = jax.Array
Scalar = Union[float, Array]


class PolicyLoss(NamedTuple):
  """What an objective says of each token.

  Attributes:
    loss: [B, T] float32, to be minimised; 0 where masked.
    ratio: [B, T] float32, new over old probability of the token (gspo: of the
      response, per token); 1 where masked.
    clipped_low: [B, T] bool, the lower bound took effect.
    clipped_high: [B, T] bool, the upper bound took effect.
  """
  loss: Array
  ratio: Array
  clipped_low: Array
  clipped_high: Array


def _inputs(new, old, advantages, mask):
  """Log-ratio [B, T], advantages [B, T], bool mask; zeros where masked."""
  chex.assert_rank([new, old, mask], 2)
  chex.assert_equal_shape([new, old, mask])
  chex.assert_rank(advantages, {1, 2})
  chex.assert_equal_shape_prefix([new, advantages], advantages.ndim)
  mask = jnp.asarray(mask, bool)
  if advantages.ndim == 1:
    advantages = advantages[:, None]
  log_ratio = jnp.where(mask, new - jax.lax.stop_gradient(old), 0.0)
  advantages = jnp.where(mask, jax.lax.stop_gradient(advantages), 0.0)
  return log_ratio.astype(jnp.float32), advantages, mask


def _clipped_surrogate(ratio, advantages, clip_low, clip_high, dual_clip):
  """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), case by case."""
  clipped_low = (advantages < 0) & (ratio < 1 - clip_low)
  clipped_high = (advantages > 0) & (ratio > 1 + clip_high)
  bounded = jnp.where(clipped_low, 1 - clip_low, ratio)
  bounded = jnp.where(clipped_high, 1 + clip_high, bounded)
  if dual_clip is not None:
    too_bad = (advantages < 0) & (ratio > dual_clip)
    bounded = jnp.where(too_bad, dual_clip, bounded)
  return PolicyLoss(-bounded * advantages, ratio, clipped_low, clipped_high)


def clip(
    new: Array,
    old: Array,
    advantages: Array,
    mask: Array,
    *,
    clip_low: Scalar,
    clip_high: Scalar,
    dual_clip: Optional[Scalar] = None,
) -> PolicyLoss:
  """Clipped surrogate per token.

    L_t = -min(r_t A, clip(r_t, 1 - clip_low, 1 + clip_high) A),
    r_t = new_t / old_t

  PPO (Schulman et al., 2017, eq. 7); two bounds as in DAPO (Yu et al., 2025,
  arXiv:2503.14476). Dual clip (Ye et al., 2019, arXiv:1912.09729): where A < 0
  the loss is at most -dual_clip A, however large the ratio.

  Args:
    new: [B, T] log-probs under the policy being updated.
    old: [B, T] log-probs under the policy at the step of the rollout.
    advantages: [B] or [B, T].
    mask: [B, T], tokens that count.
    clip_low: how far the ratio may fall below 1.
    clip_high: how far it may rise above 1.
    dual_clip: bound above 1 of the ratio where A < 0, or None.

  Returns:
    PolicyLoss. A token is `clipped` where the clip cut its gradient, that is
    on the side where its advantage would push it further out; what the dual
    clip cuts is not counted.
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
    clip_low: Scalar,
    clip_high: Scalar,
    dual_clip: Optional[Scalar] = None,
) -> PolicyLoss:
  """Clipped surrogate of the response's length-normalised ratio.

    s = exp(mean over tokens of log(new_t / old_t)),
    L_t = -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A) at each token

  GSPO (Zheng et al., 2025, arXiv:2507.18071). "sequence_mean" gives the
  paper's loss. s moves far less than a token's ratio: the paper's bounds are
  3e-4 and 4e-4.

  Args:
    new: [B, T] log-probs under the policy being updated.
    old: [B, T] log-probs under the policy at the step of the rollout.
    advantages: [B] or [B, T].
    mask: [B, T], tokens that count.
    clip_low: how far s may fall below 1.
    clip_high: how far it may rise above 1.
    dual_clip: bound above 1 of s where A < 0, or None.

  Returns:
    PolicyLoss, `ratio` and the flags being the response's at each token.
  """
  log_ratio, advantages, mask = _inputs(new, old, advantages, mask)
  tokens = jnp.sum(mask, axis=1, keepdims=True, dtype=jnp.float32)
  mean = jnp.sum(log_ratio, axis=1, keepdims=True) / jnp.maximum(tokens, 1)
  ratio = jnp.where(mask, bounded_exp(mean), 1.0)
  return _clipped_surrogate(ratio, advantages, clip_low, clip_high, dual_clip)


def cispo(
    new: Array,
    old: Array,
    advantages: Array,
    mask: Array,
    *,
    clip_low: Scalar,
    clip_high: Scalar,
) -> PolicyLoss:
  """Policy gradient weighted by the clipped ratio: no token loses its gradient.

    L_t = -SG(clip(r_t, 1 - clip_low, 1 + clip_high)) A log new_t

  CISPO (MiniMax, 2025, arXiv:2506.13585). The paper has no lower bound:
  clip_low=1.

  Args:
    new: [B, T] log-probs under the policy being updated.
    old: [B, T] log-probs under the policy at the step of the rollout.
    advantages: [B] or [B, T].
    mask: [B, T], tokens that count.
    clip_low: how far the weight may fall below 1.
    clip_high: how far it may rise above 1.

  Returns:
    PolicyLoss. A token is `clipped` where its weight is not its ratio.
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
  """Plain policy gradient at the new policy, without ratio or clip.

    L_t = -(new_t / SG(new_t)) A, with gradient -A grad log new_t

  The method's "no-clip": off-policy terms, where wanted, are weights in front
  of it (`importance`).

  Args:
    new: [B, T] log-probs under the policy being updated.
    old: [B, T] log-probs under the policy at the step of the rollout; only for
      the ratio reported.
    advantages: [B] or [B, T].
    mask: [B, T], tokens that count.

  Returns:
    PolicyLoss, with no token clipped.
  """
  log_ratio, advantages, _ = _inputs(new, old, advantages, mask)
  one = jnp.exp(log_ratio - jax.lax.stop_gradient(log_ratio))
  nowhere = jnp.zeros_like(log_ratio, bool)
  ratio = bounded_exp(jax.lax.stop_gradient(log_ratio))
  return PolicyLoss(-one * advantages, ratio, nowhere, nowhere)


OBJECTIVES = dict(clip=clip, gspo=gspo, cispo=cispo, no_clip=no_clip)
AGGREGATIONS = ('sequence_mean', 'token_mean', 'constant')


def hyperparameters(fn: Callable[..., Any]) -> tuple[str, ...]:
  """Returns the names of the keyword arguments of a function.

  Those of an objective or of a correction (`importance`) are its
  hyperparameters.
  """
  return tuple(
      name for name, parameter in inspect.signature(fn).parameters.items()
      if parameter.kind is parameter.KEYWORD_ONLY)



def token_weights(
    mask: Array,
    aggregation: str,
    *,
    where: Optional[Array] = None,
    budget: Optional[Scalar] = None,
) -> Array:
  """What each token's loss counts for in the batch's.

    sequence_mean  1 / (tokens of its row * rows)    GRPO, GSPO
    token_mean     1 / tokens of the batch           DAPO
    constant       1 / (rows * budget)               Dr. GRPO

  Args:
    mask: [B, T], tokens that count, of the whole batch.
    aggregation: one of AGGREGATIONS.
    where: [B] bool, rows that count; None is all. A row that counts stays in
      the number of rows when all its tokens are masked.
    budget: response tokens allowed, for 'constant'.

  Returns:
    [B, T] float32, 0 where masked.

  Raises:
    ValueError: an unknown aggregation, or 'constant' without a budget.
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
          'give budget=.')
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
  """The batch's loss: sum of `token_weights` times the loss per token.

  Args:
    loss: [B, T] loss per token.
    mask: [B, T], tokens that count.
    aggregation: one of AGGREGATIONS.
    where: [B] bool, rows that count; None is all.
    budget: response tokens allowed, for 'constant'.

  Returns:
    The loss, a scalar.
  """
  chex.assert_equal_shape([loss, mask])
  weights = token_weights(mask, aggregation, where=where, budget=budget)
  return jnp.sum(weights * jnp.where(weights > 0, loss, 0.0))
