"""Symmetric quantisation to 8 bits, with one scale per channel.

A channel is a vector x along one axis. Its scale is s = max |x| / top, and its
values are x / s, rounded to the nearest number of the type, so that x is about
values * s. `top` is 127 for int8, and 448, the largest number, for float8. In
int8 the error is at most s / 2. In float8 (4 bits of exponent, 3 of mantissa)
it is at most |x| / 16, or s / 1024 for numbers close to 0.
"""

import jax
import jax.numpy as jnp

Array = jax.Array

TYPES = {
    'int8': jnp.dtype(jnp.int8), 'float8': jnp.dtype(jnp.float8_e4m3fn)}
_TOP = {TYPES['int8']: 127.0, TYPES['float8']: 448.0}


def quantise(x: Array, dtype: jnp.dtype, axis: int) -> tuple[Array, Array]:
  """Rounds an array to 8 bits.

  Args:
    x: array of any floating-point type.
    dtype: one of the values of TYPES.
    axis: axis of a channel; each of its vectors gets a scale.

  Returns:
    The values, in `dtype` and x's shape, ties rounded to even; and the float32
    scales, in x's shape without `axis`. A channel of zeros has values 0.
  """
  x = x.astype(jnp.float32)
  # The smallest normal number in place of 0, for which x / scale is NaN.
  scale = jnp.maximum(
      jnp.max(jnp.abs(x), axis) / _TOP[dtype], jnp.finfo(jnp.float32).tiny)
  values = x / jnp.expand_dims(scale, axis)
  if dtype == jnp.int8:
    values = jnp.round(values)
  return values.astype(dtype), scale


def dequantise(values: Array, scale: Array, axis: int) -> Array:
  """Multiplies values by their scales.

  Args:
    values: from `quantise`.
    scale: from `quantise`.
    axis: the same as for `quantise`.

  Returns:
    A float32 array in the shape of `values`.
  """
  return values.astype(jnp.float32) * jnp.expand_dims(scale, axis)
