"""Which rows run together, how long, and how many microbatches there are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import microbatches

LENGTHS = (3, 5, 9)


@jax.jit
def _serve(length):
  """Per microbatch its rows' numbers and static length; calls; the order."""
  def fn(rows, length):
    return rows, jnp.asarray(length)

  def write(i, carry, result):
    rows, lengths, calls = carry
    return rows.at[i].set(result[0]), lengths.at[i].set(result[1]), calls + 1

  parts = len(length) // 2
  return microbatches.fold(
      fn, write, (jnp.full((parts, 2), -1), jnp.zeros(parts, int), 0),
      jnp.arange(len(length)), length, size=2, lengths=LENGTHS)


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


def test_every_mix_is_one_program():
  before = _serve._cache_size()
  for filled in (0, 3, 8):
    _serve(jnp.where(jnp.arange(8) < filled, 4, 0))
  assert _serve._cache_size() <= max(before, 1)
