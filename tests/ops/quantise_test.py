"""Tests of 8-bit rounding against float64 arithmetic and a list of numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import quantise
from tests.helpers.tolerance import rounding

KINDS = tuple(quantise.TYPES)
TOP = {'int8': 127, 'float8': 448}


@functools.cache
def program(kind, axis=-1):
  return jax.jit(functools.partial(
      quantise.quantise, dtype=quantise.TYPES[kind], axis=axis))


def numbers(kind):
  """Returns the non-negative numbers of a type, in ascending order."""
  if kind == 'int8':
    return np.arange(128.0)
  # 4 bits of exponent with bias 7, 3 of mantissa; the last code is NaN.
  exponent, mantissa = np.divmod(np.arange(127), 8)
  return np.where(
      exponent == 0, mantissa * 2.0 ** -9,
      (8 + mantissa) * 2.0 ** (exponent - 10.0))


@pytest.mark.parametrize('kind', KINDS)
def test_rounds_to_the_nearest_number_and_ties_to_even(kind):
  """All numbers and the middles between them; the largest makes the scale 1."""
  known = numbers(kind)
  middles = (known[1:] + known[:-1]) / 2
  x = np.concatenate([known, middles, -known, -middles])
  # The even one of two neighbours has an even place in the list.
  below = np.arange(len(middles))
  even = known[below + below % 2]
  values, scale = program(kind)(x.astype(np.float32))
  assert scale == 1.0 and values.dtype == quantise.TYPES[kind]
  np.testing.assert_array_equal(
      np.asarray(values, np.float64),
      np.concatenate([known, even, -known, -even]))


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('axis', [-1, -2, 0])
def test_equals_float64_and_is_close_to_what_it_rounds(kind, axis):
  rng = np.random.default_rng(0)
  x = rng.standard_normal((6, 33, 40)) * 10.0 ** rng.integers(-9, 9, (6, 1, 40))
  x = x.astype(np.float32)
  values, scale = (np.asarray(y, np.float64) for y in program(kind, axis)(x))
  want = np.abs(x.astype(np.float64)).max(axis) / TOP[kind]
  np.testing.assert_allclose(scale, want, rtol=rounding(1))
  x = x / np.expand_dims(scale, axis)
  known = numbers(kind)
  place = np.searchsorted((known[1:] + known[:-1]) / 2, np.abs(x))
  nearest = np.sign(x) * known[place]
  # Rounded to float32 first, or to float16, which has 11 bits, a number close
  # to a middle may go to the other side.
  error, least = np.abs(values - x), np.abs(nearest - x)
  assert (error <= least + 2.0 ** -11 * np.abs(x)).all()
  assert (values == nearest).mean() > 0.99
  bound = 0.5 if kind == 'int8' else np.maximum(np.abs(x) / 16, 2.0 ** -10)
  assert (error <= bound * (1 + 2.0 ** -6)).all()
  assert np.abs(values).max() == TOP[kind]
  np.testing.assert_allclose(
      quantise.dequantise(jnp.asarray(values), jnp.asarray(scale), axis),
      values * np.expand_dims(scale, axis), rtol=rounding(1))


@pytest.mark.parametrize('kind', KINDS)
def test_zeros_and_extremes_are_finite(kind):
  tiny, most = np.finfo(np.float32).tiny, np.finfo(np.float32).max
  x = np.float32([[0, 0, 0], [-0.0, tiny, 0], [most, -most, 1], [1e-30, 1, 0],
                  [tiny * 2 ** 9, -tiny * 2 ** 9, 0]])
  values, scale = program(kind)(x)
  values = np.asarray(values, np.float32)
  assert np.isfinite(values).all() and (scale > 0).all()
  assert not values[0].any()
  top = TOP[kind]
  np.testing.assert_array_equal(values[2], [top, -top, 0])
  np.testing.assert_array_equal(values[3], [0, top, 0])
  np.testing.assert_array_equal(values[4], [top, -top, 0])
  back = quantise.dequantise(jnp.asarray(values), scale, -1)
  assert np.isfinite(back[2:]).all() and not np.any(back[0])


@pytest.mark.parametrize('kind', KINDS)
def test_16_bit_numbers_are_rounded_once(kind):
  x = jnp.asarray(
      np.random.default_rng(1).standard_normal((5, 64)), jnp.bfloat16)
  for got, want in zip(program(kind)(x), program(kind)(x.astype(jnp.float32))):
    np.testing.assert_array_equal(
        np.asarray(got, np.float32), np.asarray(want, np.float32))
