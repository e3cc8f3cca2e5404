"""Tests of the K largest numbers against `jax.lax.top_k`."""

import jax
import numpy as np
import pytest

from jaxrl_llm.ops import top_k


# Rows of one block, of whole and of broken blocks; more numbers than blocks.
@pytest.mark.parametrize('size, count', [
    (5, 5), (128, 3), (1024, 7), (1000, 7), (1000, 8), (5000, 20)])
@pytest.mark.parametrize('levels', [1, 3, 40, 10 ** 6])
def test_like_lax(size, count, levels):
  """Rows of few levels have many equal numbers, also across blocks."""
  rng = np.random.default_rng(size + levels)
  x = np.float32(rng.integers(levels, size=(6, 2, size)) - levels / 2)
  x[0, 0, :] = -np.inf
  x[0, 1, :-3] = -np.inf
  x[1] = np.sort(x[1])
  got, want = (jax.jit(f, static_argnums=1)(x, count)
               for f in (top_k.top_k, jax.lax.top_k))
  np.testing.assert_array_equal(got[0], want[0])
  real = np.isfinite(want[0])
  np.testing.assert_array_equal(np.where(real, got[1], 0),
                                np.where(real, want[1], 0))
  assert ((got[1] >= 0) & (got[1] < size)).all()
