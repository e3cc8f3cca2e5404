"""Optimal budgeted rejection sampling (OBRS) of the tokens of another policy.

Jackpot (v1 and v2 below are the two versions of its paper). A behaviour
distribution q draws the tokens, but the expectation of the loss is wanted under
a target p. Each token x is kept with probability

  a(x) = min(1, p(x) / (lam q(x)))                                     (Eq. 3)

so that the kept ones have the distribution

  q'(x) = min(q(x), p(x) / lam) / Z,  Z = sum_x min(q(x), p(x) / lam)  (Eq. 4)

Among all rules with the same rate of acceptance Z, this one has the smallest
KL(p || q') (v2, Theorem 3.4). With lam = 1 every token that the target makes
likelier is kept; a smaller lam keeps more tokens, a larger one fewer.

All arguments are log-probs, of any floating type; all results are float32. Both
distributions have the temperature and no truncation.
"""

from typing import Callable, NamedTuple, Optional, Union

import chex
import jax
import jax.numpy as jnp

from jaxrl_llm.ops import importance

Array = jax.Array
Scalar = Union[float, Array]

TARGETS = ('p_new', 'p_ref')
# Halvings that take an interval of log-ratios below float32's resolution.
_BISECTIONS = 60


def _float32(*arrays: Array) -> list[Array]:
  return [jnp.asarray(x, jnp.float32) for x in arrays]


def _log_ratio(logp: Array, logq: Array) -> Array:
  """Computes log(p / q), where p = 0 is 0 of any q."""
  return jnp.where(jnp.isneginf(logp), logp, logp - logq)


def acceptance(
    logp_target: Array, logp_behaviour: Array, *, lam: Scalar) -> Array:
  """Computes a(x) = min(1, p(x) / (lam q(x))), Eq. 3.

  Args:
    logp_target: [...] log p of the tokens.
    logp_behaviour: [...] log q of the tokens.
    lam: threshold, above 0.

  Returns:
    [...] float32 in [0, 1]; 0 of a token that the target never writes.
  """
  chex.assert_equal_shape([logp_target, logp_behaviour])
  ratio = _log_ratio(*_float32(logp_target, logp_behaviour))
  return jnp.exp(jnp.minimum(ratio - jnp.log(lam), 0.0))


def accept_mask(key: Array, acceptance: Array) -> Array:
  """Draws which tokens to keep.

  Args:
    key: PRNG key.
    acceptance: [...] probabilities.

  Returns:
    [...] bool; True with the token's probability. 1 is always kept.
  """
  return jax.random.uniform(key, acceptance.shape) < acceptance


def normalizer(
    logp_target: Array, logp_behaviour: Array, *, lam: Scalar) -> Array:
  """Computes Z = sum_v min(q(v), p(v) / lam), Eq. 4: the rate of acceptance.

  Args:
    logp_target: [..., V] log p; -inf is 0.
    logp_behaviour: [..., V] log q of the same tokens.
    lam: threshold, above 0.

  Returns:
    [...] float32. For distinct tokens that are only a part of the vocabulary,
    it is a lower bound of Z.
  """
  chex.assert_equal_shape([logp_behaviour, logp_target])
  target, behaviour = _float32(logp_target, logp_behaviour)
  return jnp.sum(
      jnp.exp(jnp.minimum(behaviour, target - jnp.log(lam))), axis=-1)


def normalizer_topk(
    ids_b: Array,
    logp_b: Array,
    ids_t: Array,
    logp_t: Array,
    *,
    lam: Scalar,
    logp_t_at_b: Optional[Array] = None,
    logp_b_at_t: Optional[Array] = None,
) -> Array:
  """Computes Z over topk(q) and topk(p) alone (Sec. 4.4.1), each token once.

  A log-prob that is not known counts as probability 0: those of topk(q) under
  p, and of topk(p) under q, unless they are given or the token is in both sets.
  So the result never exceeds Z.

  Args:
    ids_b: [..., K] int, distinct tokens, likely ones under the behaviour q.
    logp_b: [..., K] their log q.
    ids_t: [..., M] int, distinct tokens, likely ones under the target p.
    logp_t: [..., M] their log p.
    lam: threshold, above 0.
    logp_t_at_b: [..., K] log p of ids_b, or None.
    logp_b_at_t: [..., M] log q of ids_t, or None.

  Returns:
    [...] float32.
  """
  chex.assert_equal_shape([ids_b, logp_b])
  chex.assert_equal_shape([ids_t, logp_t])
  same = ids_b[..., :, None] == ids_t[..., None, :]  # [..., K, M]
  if logp_t_at_b is None:
    logp_t_at_b = jnp.max(
        jnp.where(same, logp_t[..., None, :], -jnp.inf), axis=-1)
  z = normalizer(logp_t_at_b, logp_b, lam=lam)
  if logp_b_at_t is not None:
    alone = jnp.where(jnp.any(same, axis=-2), -jnp.inf, logp_b_at_t)
    z += normalizer(logp_t, alone, lam=lam)
  return z


def calibration(
    z_approx: Array, accepted: Array, where: Array, *,
    previous: Scalar = 1.0) -> Array:
  """Computes kappa = alpha_hat / mean(z_approx), the bias correction of Z.

  E[a(x)] = Z at each position, so the mean acceptance alpha_hat estimates the
  mean of Z (Sec. 4.4.2), and kappa z_approx has this mean.

  Args:
    z_approx: [...] normalisers over a part of the vocabulary.
    accepted: [...] the tokens' acceptance (lower variance), or the mask drawn
      from it (the paper).
    where: [...] bool, tokens that count, of the whole batch.
    previous: kappa if no token counts, or none is accepted.

  Returns:
    [] float32, not clamped.
  """
  chex.assert_equal_shape([z_approx, accepted, where])
  total = lambda x: jnp.sum(jnp.where(where, x, 0.0), dtype=jnp.float32)
  return kappa(total(accepted), total(z_approx), previous=previous)


def kappa(accepted: Array, z_approx: Array, *, previous: Scalar) -> Array:
  """Computes `calibration` from sums over tokens."""
  some = (accepted > 0) & (z_approx > 0)
  # The inner `where` keeps 0 / 0 out of both branches.
  return jnp.where(some, accepted / jnp.where(some, z_approx, 1.0), previous)


class Logprobs(NamedTuple):
  """Log-probs of sampled tokens under three policies.

  Attributes:
    new: [B, T] under the policy in training.
    old: [B, T] under the policy at the step of the rollout, p_ref in the paper.
    behaviour: [B, T] under the actor, q.
  """
  new: Array
  old: Array
  behaviour: Array

  def of_target(self, target: str) -> Array:
    """Returns log p of a target, one of TARGETS."""
    return self.new if target == 'p_new' else self.old


class TokenWeights(NamedTuple):
  """Weights of tokens, without gradient.

  Attributes:
    weight: [B, T] float32; 1 where masked.
    at_c1: [B, T] bool, the correction changed the first factor.
    at_c2: [B, T] bool, c2 bounded the second factor.
  """
  weight: Array
  at_c1: Array
  at_c2: Array


def weights(
    logprobs: Logprobs,
    z: Array,
    mask: Array,
    *,
    lam: Scalar,
    c1: Scalar = jnp.inf,
    c2: Optional[Scalar] = jnp.inf,
    target: str = 'p_new',
    correction: Optional[Callable[[Array, Array], Array]] = None,
) -> TokenWeights:
  """Computes the weights that multiply the loss of the kept tokens.

    SG( min(p / q', c1) min(p_ref / p, c2) ),  p / q' = Z max(lam, p / q)

  for a surrogate with the ratio p_new / p_ref (v1, Eq. 7 to 11; v2, Eq. 5). The
  second factor is 1 for the target p_ref. It is left out where the surrogate
  has no such ratio (`c2=None`; v1, App. B.1): the weight is then p_new / q'
  alone.

  Args:
    logprobs: of the sampled tokens.
    z: [B, T] Z at each position, or its approximation times kappa.
    mask: [B, T] bool, tokens that count; the others may hold anything.
    lam: threshold, above 0.
    c1: bound of the first factor.
    c2: bound of the second factor; None leaves the factor out.
    target: which policy is p, one of TARGETS.
    correction: another F(x) in place of min(x, c1): (log x [B, T], mask) ->
      weights, such as those of `importance`.

  Returns:
    The weights. Ratios are at most e^20, see `importance.bounded_exp`.
  """
  chex.assert_rank(mask, 2)
  chex.assert_equal_shape([*logprobs, z, mask])
  if target not in TARGETS:
    raise ValueError(
        f'target={target!r} is not known: use one of {", ".join(TARGETS)}.')
  *masked, z = (
      jax.lax.stop_gradient(jnp.where(mask, x, 0.0)).astype(jnp.float32)
      for x in (*logprobs, z))
  logprobs = Logprobs(*masked)
  log_x = jnp.log(z) + jnp.maximum(jnp.log(lam), _log_ratio(
      logprobs.of_target(target), logprobs.behaviour))
  log_x = jnp.where(mask, log_x, 0.0)
  x = importance.bounded_exp(log_x)
  if correction is None:
    correction = lambda log_x, mask: importance.tis(log_x, mask, cap=c1)
  weight = first = correction(log_x, mask)
  at_c2 = jnp.zeros_like(mask)
  if target == 'p_new' and c2 is not None:
    second = importance.bounded_exp(_log_ratio(logprobs.old, logprobs.new))
    weight, at_c2 = first * jnp.minimum(second, c2), second > c2
  changed = jnp.abs(first - x) > 1e-5 * x  # more than by rounding
  return TokenWeights(
      jnp.where(mask, weight, 1.0), at_c1=mask & changed, at_c2=mask & at_c2)


def log_lam_for_rate(
    logp_target: Array, logp_behaviour: Array, rate: Scalar) -> Array:
  """Finds log lam of the rate of acceptance Z = `rate` (v2, Theorem 3.4).

  Z falls from 1 to 0 as lam grows, and 1 / lam bounds it, so bisection of
  log lam between min_v log(p/q) and -log(rate) finds it.

  Where p and q are far apart, lam has no float32: its exp is 0 below -87. Only
  p / lam counts in Eq. 3 and 4, so that `logp_target - log_lam` and lam=1 are
  the same rule there.

  Args:
    logp_target: [..., V] log p, finite.
    logp_behaviour: [..., V] log q, finite.
    rate: share of tokens to accept, in (0, 1].

  Returns:
    [...] float32.
  """
  chex.assert_equal_shape([logp_target, logp_behaviour])
  target, behaviour = _float32(logp_target, logp_behaviour)
  low = jnp.min(target - behaviour, axis=-1)
  high = jnp.broadcast_to(-jnp.log(jnp.float32(rate)), low.shape)

  def halve(_, ends):
    low, high = ends
    middle = (low + high) / 2
    z = normalizer(target - middle[..., None], behaviour, lam=1.0)
    return jnp.where(z >= rate, middle, low), jnp.where(z >= rate, high, middle)

  return jax.lax.fori_loop(0, _BISECTIONS, halve, (low, high))[0]
