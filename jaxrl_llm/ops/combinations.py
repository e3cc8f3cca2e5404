"""Shares of subsets, without factorials: what pass@k is made of."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


def as_int32(x: Any, name: str) -> Array:
  """An int32 array; TypeError if it is of no integer type."""
  x = jnp.asarray(x)
  if not jnp.issubdtype(x.dtype, jnp.integer):
    raise TypeError(f'{name} must be integers, not {x.dtype}.')
  return x.astype(jnp.int32)


# `_rest` of y = 1, 2, ..., for which float32 needs more than its series.
_REST = np.array([
    math.lgamma(y) - (y - 0.5) * math.log(y) + y - 0.5 * math.log(2 * math.pi)
    for y in range(1, 8)])


def _rest(y: Array, dtype: Any) -> Array:
  """log((y-1)!) less (y - 1/2) log(y) - y + log(2 pi)/2, for y >= 1."""
  x = 1 / y.astype(dtype)
  series = x * (1 / 12 - x * x * (1 / 360 - x * x / 1260))
  table = jnp.asarray(_REST, dtype)
  return jnp.where(
      y <= len(table), table[jnp.minimum(y, len(table)) - 1], series)


def log_misses(n: Array, c: Array, k: Array, dtype: Any) -> Array:
  """log(C(n-c, k) / C(n, k)): of n samples, k at random miss all of some c.

  The same few operations whatever n. By Stirling's formula for the four
  factorials; their large terms cancel on paper, so that what is added up here
  is no larger than the result, about -c k / n.

  Args:
    n: integers; taken as 0 if less. The three broadcast.
    c: integers; taken as 0 if less, as n if more.
    k: the same.
    dtype: of the result.

  Returns:
    At most 0; -inf where k must hit one of the c.
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
