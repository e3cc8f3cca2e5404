"""Tests of the order of the problems, which depends on the position alone."""

import numpy as np
import pytest

from jaxrl_llm.curriculum import order


@pytest.mark.parametrize('n', [1, 7, 100])
def test_each_epoch_visits_every_item_once(n):
  got = order.indices(n, seed=3, position=0, count=4 * n)
  for epoch in got.reshape(4, n):
    assert sorted(epoch) == list(range(n))


def test_any_split_gives_the_same_order():
  whole = order.indices(11, seed=1, position=0, count=60)
  rng = np.random.default_rng(0)
  position, parts = 0, []
  while position < 60:
    count = min(int(rng.integers(0, 30)), 60 - position)
    parts.append(order.indices(11, seed=1, position=position, count=count))
    position += count
  np.testing.assert_array_equal(np.concatenate(parts), whole)
  np.testing.assert_array_equal(
      order.indices(11, seed=1, position=35, count=3), whole[35:38])


def test_epochs_and_seeds_differ():
  a, b = order.indices(50, seed=0, position=0, count=100).reshape(2, 50)
  assert (a != b).any()
  assert (a != order.indices(50, seed=1, position=0, count=50)).any()
  assert (a != np.arange(50)).any()


def test_seed_and_epoch_do_not_mix():
  """(seed 0, epoch 1) is not (seed 1, epoch 0), as adding them would be."""
  later = order.indices(50, seed=0, position=50, count=50)
  assert (later != order.indices(50, seed=1, position=0, count=50)).any()


def test_first_item_is_uniform():
  firsts = [
      order.indices(5, seed=s, position=0, count=1)[0] for s in range(2000)]
  # 400 expected of each; 5 standard deviations of a binomial are 89.
  assert np.abs(np.bincount(firsts, minlength=5) - 400).max() < 89


def test_far_positions_cost_no_walk():
  got = order.indices(10, seed=0, position=10**12 + 4, count=12)
  assert got.shape == (12,)
  assert sorted(np.r_[order.indices(10, seed=0, position=10**12, count=4),
                      got[:6]]) == list(range(10))


def test_empty_count_and_type():
  got = order.indices(5, seed=0, position=3, count=0)
  assert got.shape == (0,) and got.dtype == np.int64


def test_any_positions():
  whole = order.indices(11, seed=1, position=0, count=60)
  positions = np.array([40, 3, 3, 59])
  np.testing.assert_array_equal(order.at(positions, 11, 1), whole[positions])
  assert order.at(positions[:0], 11, 1).shape == (0,)


def test_caller_cannot_change_what_comes_next():
  first = order.indices(5, seed=0, position=0, count=5)
  kept = first.copy()
  first[:] = 0
  np.testing.assert_array_equal(
      order.indices(5, seed=0, position=0, count=5), kept)


@pytest.mark.parametrize('bad', [
    dict(n=0, seed=0, position=0, count=1),
    dict(n=3, seed=-1, position=0, count=1),
    dict(n=3, seed=0, position=-1, count=1),
    dict(n=3, seed=0, position=0, count=-1),
])
def test_bad_arguments(bad):
  with pytest.raises(ValueError, match=r'no problems|at least 0'):
    order.indices(bad.pop('n'), **bad)
