"""Importance corrections from the behaviour policy to the old policy.

x is a token's old probability divided by its behaviour probability. Where
trainer and sampler agree, it is 1 with `loss.behaviour='tempered'`, and the
probability that truncation kept with 'sampled'. A correction F(x), held
constant, multiplies the token's loss (Jackpot, eq. 2). Each takes

  log_ratio: [B, T] log x = old - behaviour log-probs.
  mask: [B, T], tokens that count; the others may hold anything.

and returns weights [B, T] float32 without gradient, 1 where masked. Thresholds
may be traced.
"""

from typing import Annotated, Callable, Union

import chex
import jax
import jax.numpy as jnp

Array = jax.Array
Scalar = Union[float, Array]
_Cap = Annotated[Scalar, '[1, inf]']

# A ratio above e^20 is a fault, not an estimate.
MAX_LOG_RATIO = 20.0


def bounded_exp(log_ratio: Array) -> Array:
  """Returns min(exp(log_ratio), e^20), so that products of ratios stay finite.

  The gradient is 0 above the bound.
  """
  return jnp.exp(jnp.minimum(log_ratio, MAX_LOG_RATIO))


def geometric_mean(log_ratio: Array, mask: Array) -> Array:
  """Computes the geometric mean of a response's ratios.

  Args:
    log_ratio: [B, T], 0 where masked.
    mask: [B, T] bool.

  Returns:
    [B, 1], at most e^20; 1 for a response without tokens.
  """
  tokens = jnp.sum(mask, axis=1, keepdims=True, dtype=jnp.float32)
  return bounded_exp(
      jnp.sum(log_ratio, axis=1, keepdims=True) / jnp.maximum(tokens, 1))


def _masked(log_ratio, mask):
  """Returns float32 log-ratios, 0 where masked, no gradient; and the mask."""
  chex.assert_rank([log_ratio, mask], 2)
  chex.assert_equal_shape([log_ratio, mask])
  mask = jnp.asarray(mask, bool)
  log_ratio = jax.lax.stop_gradient(jnp.where(mask, log_ratio, 0.0))
  return log_ratio.astype(jnp.float32), mask


def none(log_ratio: Array, mask: Array) -> Array:
  """Applies no correction: F(x) = 1."""
  chex.assert_equal_shape([log_ratio, mask])
  return jnp.ones(log_ratio.shape, jnp.float32)


def identity(log_ratio: Array, mask: Array) -> Array:
  """Applies the full ratio: F(x) = x.

  It is exact per token, but its variance is unbounded. Used in AReaL's
  decoupled objective (Fu et al., 2025, arXiv:2505.24298).
  """
  return bounded_exp(_masked(log_ratio, mask)[0])


def tis(log_ratio: Array, mask: Array, *, cap: _Cap = 2.0) -> Array:
  """Truncates the ratio: F(x) = min(x, cap).

  Truncated importance sampling (Yao et al., 2025).

  Args:
    log_ratio: [B, T].
    mask: [B, T], tokens that count.
    cap: largest weight.
  """
  return jnp.minimum(bounded_exp(_masked(log_ratio, mask)[0]), cap)


def icepop(
    log_ratio: Array, mask: Array, *,
    low: Annotated[Scalar, '[0, 1]'] = 0.5, cap: _Cap = 2.0) -> Array:
  """Drops tokens with an extreme ratio: F(x) = x in [low, cap], else 0.

  IcePop (Ling team, 2025, arXiv:2510.18855).

  Args:
    log_ratio: [B, T].
    mask: [B, T], tokens that count.
    low: tokens with a weight below this are dropped.
    cap: tokens with a weight above this are dropped.
  """
  log_ratio, mask = _masked(log_ratio, mask)
  x = bounded_exp(log_ratio)
  return jnp.where(mask & ((x < low) | (x > cap)), 0.0, x)


def sequence_tis(
    log_ratio: Array, mask: Array, *, cap: _Cap = 2.0) -> Array:
  """Truncates the ratio of the response: min(product of its tokens' x, cap).

  All tokens of a response have the same weight. Apart from the cap it is
  unbiased for the whole response; its variance grows with the length.

  Args:
    log_ratio: [B, T].
    mask: [B, T], tokens that count.
    cap: largest weight.
  """
  log_ratio, mask = _masked(log_ratio, mask)
  x = bounded_exp(jnp.sum(log_ratio, axis=1, keepdims=True))
  return jnp.where(mask, jnp.minimum(x, cap), 1.0)


def geometric_mask(
    log_ratio: Array, mask: Array, *,
    low: Annotated[Scalar, '[0, 1]'] = 0.99, cap: _Cap = 1.01) -> Array:
  """Drops responses whose tokens have an extreme ratio on average.

    F = 1 where exp(mean over tokens of log x) is in [low, cap], else 0

  All tokens of a response are kept or dropped. The geometric mean does not grow
  with the length, as the product of `sequence_tis` does. The bounds are ours.

  Args:
    log_ratio: [B, T].
    mask: [B, T], tokens that count.
    low: responses with a mean below this are dropped.
    cap: responses with a mean above this are dropped.
  """
  log_ratio, mask = _masked(log_ratio, mask)
  x = geometric_mean(log_ratio, mask)
  return jnp.where(mask & ((x < low) | (x > cap)), 0.0, 1.0)


CORRECTIONS = dict(
    none=none, identity=identity, tis=tis, icepop=icepop,
    sequence_tis=sequence_tis, geometric_mask=geometric_mask)


def correction(
    which: str | Callable[..., Array]) -> Callable[..., Array]:
  """Returns a correction: a key of CORRECTIONS, or a function of that form."""
  return which if callable(which) else CORRECTIONS[which]
