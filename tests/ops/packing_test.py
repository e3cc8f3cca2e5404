"""Tests of packing against a slow twin."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import packing


def _twin(lengths, width):
  """Packs one sequence after another into lists of bins."""
  room, places = [], {}
  for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
    fitting = [b for b, n in enumerate(room) if n >= lengths[i]]
    if not fitting and lengths[i]:
      room.append(width)
      fitting = [len(room) - 1]
    if lengths[i]:
      b = min(fitting, key=lambda b: room[b])
      places[i] = b, width - room[b]
      room[b] -= lengths[i]
  return places, len(room)


@pytest.mark.parametrize('seed', range(6))
def test_best_fit_equals_twin(seed):
  rng = np.random.default_rng(seed)
  width = 11
  lengths = rng.integers(0, width + 1, 17)
  if seed == 0:
    lengths[:] = 0
  got = packing.best_fit(jnp.asarray(lengths, jnp.int32), width)
  want, used = _twin(lengths.tolist(), width)
  assert got.used == used
  assert {i: (int(got.bin[i]), int(got.offset[i])) for i in want} == want

  owner = packing.owners(got, jnp.asarray(lengths, jnp.int32), width)
  expected = np.full((17, width), -1)
  for i, (b, offset) in want.items():
    assert (expected[b, offset:offset + lengths[i]] == -1).all()
    expected[b, offset:offset + lengths[i]] = i
  np.testing.assert_array_equal(owner, expected)
