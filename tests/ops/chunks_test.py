"""Tests of functions applied to chunks of tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import chunks

X = np.arange(1.0, 11.0, dtype=np.float32)
NEEDED = np.array([1, 0, 0, 0, 0, 0, 0, 0, 1, 0], bool)


@pytest.mark.parametrize('chunk', [1, 3, 4, 10, 20])
def test_results_do_not_depend_on_chunks(chunk):
  def loss(x, w):
    out = chunks.over_chunks(lambda x: {'y': w * x ** 2}, x, chunk)['y']
    return jnp.sum(out * X), out

  (_, out), grads = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(
      X, jnp.float32(3))
  np.testing.assert_array_equal(out, 3 * X ** 2)
  np.testing.assert_allclose(grads[0], 6 * X * X, rtol=1e-6)
  np.testing.assert_allclose(grads[1], np.sum(X ** 3), rtol=1e-6)


@pytest.mark.parametrize('chunk, computed', [
    (3, [1, 1, 1, 0, 0, 0, 1, 1, 1, 0]),  # chunks of 3, 3, 3 and 1
    (5, [1] * 10), (20, [1] * 10),
    (1, NEEDED)])
def test_chunks_without_a_needed_token_are_skipped(chunk, computed):
  """Their results and gradients are zero, even where NaN comes in."""
  x = np.where(computed, X, np.nan).astype(np.float32)
  ran = []

  def fn(x, w):
    jax.debug.callback(lambda x: ran.extend(np.asarray(x)), x)
    return w * x

  def loss(x, w):
    out = chunks.over_chunks(
        lambda x: fn(x, w), x, chunk, needed=jnp.asarray(NEEDED))
    return jnp.sum(jnp.where(NEEDED, out, 0)), out

  out = jax.jit(lambda x: loss(x, 2.0)[1])(x)
  jax.effects_barrier()
  np.testing.assert_array_equal(out, np.where(computed, 2 * X, 0))
  # The last chunk is padded by zeros.
  assert sorted({*ran} - {0}) == X[np.array(computed, bool)].tolist()
  grads = jax.grad(lambda *args: loss(*args)[0], argnums=(0, 1))(
      x, jnp.float32(2))
  np.testing.assert_array_equal(grads[0], 2 * NEEDED)
  np.testing.assert_allclose(grads[1], X[NEEDED].sum(), rtol=1e-6)
