"""Corrections for tokens drawn from another distribution than the old policy.

x is the old over the behaviour probability of a token: 1 where trainer and
sampler agree and nothing was truncated. A correction F(x), held constant,
multiplies the token's loss (Jackpot, eq. 2). Each takes

  log_ratio: [B, T] log x = old - behaviour log-probs.
  mask: [B, T], tokens that count; what the others hold never matters.

and returns weights [B, T] float32 without gradient, 1 where masked. Its
thresholds may be traced.
"""

from typing import Union

import chex
import jax
import jax.numpy as jnp

Array = jax.Array
Scalar = Union[float, Array]

# A ratio above e^20 is a fault, not an estimate.
MAX_LOG_RATIO = 20.0


def bounded_exp(log_ratio: Array) -> Array:
  """min(exp(log_ratio), e^20), so that products of ratios stay finite.

  Above the bound the gradient is 0.
  """
  return jnp.exp(jnp.minimum(log_ratio, MAX_LOG_RATIO))


def _masked(log_ratio, mask):
  """The log-ratio as float32 without gradient, 0 where masked; bool mask."""
  chex.assert_rank([log_ratio, mask], 2)
  chex.assert_equal_shape([log_ratio, mask])
  mask = jnp.asarray(mask, bool)
  log_ratio = jax.lax.stop_gradient(jnp.where(mask, log_ratio, 0.0))
  return log_ratio.astype(jnp.float32), mask


def none(log_ratio: Array, mask: Array) -> Array:
  """F(x) = 1: no correction."""
  chex.assert_equal_shape([log_ratio, mask])
  return jnp.ones(log_ratio.shape, jnp.float32)


def identity(log_ratio: Array, mask: Array) -> Array:
  """F(x) = x: exact per token, of unbounded variance.

  AReaL's decoupled objective (Fu et al., 2025, arXiv:2505.24298).
  """
  return bounded_exp(_masked(log_ratio, mask)[0])


def tis(log_ratio: Array, mask: Array, *, cap: Scalar) -> Array:
  """F(x) = min(x, cap): truncated importance sampling (Yao et al., 2025)."""
  return jnp.minimum(bounded_exp(_masked(log_ratio, mask)[0]), cap)


def icepop(
    log_ratio: Array, mask: Array, *, low: Scalar, cap: Scalar) -> Array:
  """F(x) = x inside [low, cap], else 0: drops tokens that are too far off.

  IcePop (Ling team, 2025, arXiv:2510.18855).
  """
  log_ratio, mask = _masked(log_ratio, mask)
  x = bounded_exp(log_ratio)
  return jnp.where(mask & ((x < low) | (x > cap)), 0.0, x)


def sequence_tis(log_ratio: Array, mask: Array, *, cap: Scalar) -> Array:
  """min(product of the response's x, cap), the same at each of its tokens.

  Unbiased for the whole response but for the cap; the variance grows with its
  length.
  """
  log_ratio, mask = _masked(log_ratio, mask)
  x = bounded_exp(jnp.sum(log_ratio, axis=1, keepdims=True))
  return jnp.where(mask, jnp.minimum(x, cap), 1.0)


CORRECTIONS = dict(
    none=none, identity=identity, tis=tis, icepop=icepop,
    sequence_tis=sequence_tis)
