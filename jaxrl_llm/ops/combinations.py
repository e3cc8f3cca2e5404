"""Ratios of binomial coefficients, from which pass@k is computed."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


def as_int32(x: Any, name: str) -> Array:
  """Converts x to an int32 array; raises TypeError if it is not integer."""
  x = jnp.asarray(x)
  if not jnp.issubdtype(x.dtype, jnp.integer):
    raise TypeError(f'{name} must be integers, not {x.dtype}.')
  return x.astype(jnp.int32)


# `_rest` of y = 1, 2, ..., where its series is too coarse for float32.
_REST = np.array([
    math.lgamma(y) - (y - 0.5) * math.log(y) + y - 0.5 * math.log(2 * math.pi)
    for y in range(1, 8)])


def _rest(y: Array, dtype: Any) -> Array:
  """Returns the remainder of Stirling's formula, for y >= 1.

    log((y-1)!) - ((y - 1/2) log(y) - y + log(2 pi) / 2)
  """
  x = 1 / y.astype(dtype)
  series = x * (1 / 12 - x * x * (1 / 360 - x * x / 1260))
  table = jnp.asarray(_REST, dtype)
  return jnp.where(
      y <= len(table), table[jnp.minimum(y, len(table)) - 1], series)


def log_misses(n: Array, c: Array, k: Array, dtype: Any) -> Array:
  """Returns log(C(n-c, k) / C(n, k)).

  This is the log of the probability that k of n samples, drawn at random
  without replacement, contain none of c given ones.

  The number of operations does not depend on n. Each of the four factorials is
  expanded by Stirling's formula, and the large terms are cancelled
  analytically: every term added here is at most as large as the result, about
  -c k / n.

  Args:
    n: integers; negative ones count as 0. n, c and k broadcast.
    c: integers, clipped to [0, n].
    k: integers, clipped to [0, n].
    dtype: type of the result.

  Returns:
    Values of at most 0; -inf where k > n - c.
  """
  n = jnp.maximum(n, 0)
  c, k = jnp.clip(c, 0, n), jnp.clip(k, 0, n)
  left = jnp.maximum(n - c - k, 0) + 1
  all_, c_, k_, left_ = (x.astype(dtype) for x in (n + 1, c, k, left))

  def log_without(x):  # log(1 - x / (n+1)), also where x is nearly n + 1
    return jnp.where(
        2 * x > n, jnp.log((n + 1 - x).astype(dtype) / all_),
        jnp.log1p(-x.astype(dtype) / all_))

  value = (left_ - 0.5) * jnp.log1p(c_ * k_ / (all_ * left_))
  value += k_ * log_without(c) + c_ * log_without(k)
  value += _rest(n - c + 1, dtype) - _rest(n + 1, dtype)
  value += _rest(n - k + 1, dtype) - _rest(left, dtype)
  return jnp.where(c + k <= n, value, -jnp.inf)
