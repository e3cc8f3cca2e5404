"""Tests of microbatches: their rows, lengths and number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import microbatches
from tests.helpers.tolerance import rounding

LENGTHS = (3, 5, 9)


@jax.jit
def _serve(length):
  """Returns row numbers and static length per microbatch; calls; the order."""
  def fn(rows, length):
    return rows, jnp.asarray(length)

  def write(i, carry, result):
    rows, lengths, calls = carry
    return rows.at[i].set(result[0]), lengths.at[i].set(result[1]), calls + 1

  parts = len(length) // 2
  cut, order = microbatches.arrange(
      jnp.arange(len(length)), length, size=2, lengths=LENGTHS)
  return microbatches.fold(
      fn, write, (jnp.full((parts, 2), -1), jnp.zeros(parts, int), 0), cut,
      lengths=LENGTHS), order


@pytest.mark.parametrize('seed', range(20))
def test_fold_against_twin(seed):
  rng = np.random.default_rng(seed)
  length = rng.integers(0, 10, 8, np.int32) * (rng.random(8) < seed / 19)
  (rows, ran, calls), order = _serve(jnp.asarray(length))
  want = sorted(range(8), key=lambda row: -length[row])
  np.testing.assert_array_equal(order, want)
  needed = [row for row in want if length[row]]
  assert calls == -(-len(needed) // 2)
  for i in range(calls):
    pair = want[2 * i:2 * i + 2]
    np.testing.assert_array_equal(rows[i], pair)
    assert ran[i] == min(n for n in LENGTHS if n >= length[pair].max())
  assert (np.asarray(rows)[calls:] == -1).all()


@pytest.mark.parametrize('length, ran', [
    ((1, 4), 5), ((9, 0), 9), ((0, 3), 3), ((0, 0), LENGTHS[0])])
def test_one_microbatch_keeps_the_order_and_is_always_computed(length, ran):
  (rows, at, count), order = _serve(jnp.array(length))
  assert order.tolist() == [0, 1] and count == 1
  assert rows.tolist() == [[0, 1]]
  assert at.tolist() == [ran]


def test_every_mix_is_one_program():
  before = _serve._cache_size()
  for filled in (0, 3, 8):
    _serve(jnp.full(8, 4, jnp.int32).at[filled:].set(0))
  assert _serve._cache_size() <= max(before, 1)


@pytest.mark.parametrize('shape', [(4, 6), (4, 6, 3)])
def test_columns_against_twin(shape):
  rng = np.random.default_rng(0)
  x, start = rng.normal(size=shape), np.array([0, 2, 5, 6], np.int32)
  want = np.zeros((4, 5, *shape[2:]))
  for row in range(4):
    for t in range(5):
      if start[row] + t < 6:
        want[row, t] = x[row, start[row] + t]
  got, pull = jax.vjp(
      lambda x: microbatches.columns(x, jnp.asarray(start), 5), jnp.asarray(x))
  # Moved, but rounded once to float32.
  np.testing.assert_allclose(got, want, rtol=rounding(1))
  # The gradient of a selection says what was selected.
  seen = np.arange(6) >= start[:, None]
  seen &= np.arange(6) < start[:, None] + 5
  np.testing.assert_array_equal(
      pull(jnp.ones_like(got))[0], seen.reshape(4, 6, *[1] * (x.ndim - 2))
      * np.ones(shape))
