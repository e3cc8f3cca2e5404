"""Tests of the advantages of turns."""

import jax
import numpy as np
import pytest

from jaxrl_llm.ops import advantages, turns
from tests.helpers.tolerance import rounding


def random(seed=0):
  """Makes rewards of 4 groups of 8 trajectories, of 0 to 4 turns."""
  rng = np.random.default_rng(seed)
  count = rng.integers(0, 5, (4, 8))
  number = np.arange(4)
  of_turns = np.where(
      number < count[..., None], rng.normal(size=(4, 8, 4)), np.nan)
  # Columns 1 and 2 of each turn's 3 are the model's.
  place = np.arange(12)
  turn = np.where(
      (place % 3 > 0) & (place // 3 < count[..., None]), place // 3, -1)
  return dict(
      rewards=rng.normal(size=(4, 8)).astype(np.float32),
      where=rng.random((4, 8)) < .8, turn=turn,
      turn_rewards=of_turns.astype(np.float32)), count


def twin(given, count, discount, by_turn, scale, eps=1e-6):
  """Computes the advantages one turn at a time, in float64."""
  out = np.zeros(given['turn'].shape)
  for group, counts in enumerate(count):
    found = {}
    for row in np.flatnonzero(given['where'][group]):
      each = np.float64(given['turn_rewards'][group, row, :counts[row]])
      if not len(each):
        continue
      each[-1] += given['rewards'][group, row] - each.sum()
      for u in range(len(each)):
        found[row, u] = sum(
            discount ** (v - u) * each[v] for v in range(u, len(each)))
    for (row, u), value in found.items():
      peers = np.array([
          x for (_, v), x in found.items() if v == u or not by_turn])
      if len(peers) < 2:
        continue
      value -= peers.mean()
      if scale:
        value /= peers.std(ddof=1) + eps
      out[group, row][given['turn'][group, row] == u] = value
  return out


@pytest.mark.parametrize('by_turn', [True, False])
@pytest.mark.parametrize('scale', [True, False])
def test_equals_the_twin(by_turn, scale):
  given, count = random()
  options = dict(discount=.7, by_turn=by_turn, scale=scale)
  got = jax.jit(lambda: turns.turns(**given, **options))()
  want = twin(given, count, **options)
  # Numbers of up to 4, added and multiplied 20 times; near ties amplify.
  np.testing.assert_allclose(
      got, want, rtol=0, atol=rounding(20, 20, magnitude=8) * 8)
  assert np.count_nonzero(want) > 40


def test_golden():
  """Two trajectories of two turns: returns 1, 4 and 3, 2 with discount 1/2.

  The first has the rewards -1, 4, the second 2, 2.
  """
  got = turns.turns(
      np.float32([[3, 4]]), where=np.ones((1, 2), bool),
      turn=np.array([[[0, 0, -1, 1], [0, -1, 1, -1]]]),
      turn_rewards=np.float32([[[-1, 4], [2, 2]]]), discount=.5, scale=False)
  np.testing.assert_array_equal(got, [[[-1, -1, 0, 1], [1, 0, -1, 0]]])


def test_a_reward_at_the_end_is_discounted_towards_the_first_turn():
  """The task has judged; turns have no rewards of their own."""
  got = turns.returns(
      np.float32([8, 8, 8]), np.zeros((3, 3), np.float32),
      np.array([3, 1, 0]), .5)
  np.testing.assert_array_equal(got, [[2, 4, 8], [8, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize('by_turn', [True, False])
@pytest.mark.parametrize('scale', [True, False])
def test_sums_in_another_order_are_no_signal(by_turn, scale):
  """Their last bits differ, and a standard deviation would blow them up."""
  rng = np.random.default_rng(0)
  number = lambda *shape: np.broadcast_to(np.arange(3), shape).copy()
  for size in 1, 10, 1000:
    of_turns = np.round(rng.random((8, 1, 3)) * size, 1).astype(np.float32)
    of_turns = rng.permuted(np.tile(of_turns, (1, 4, 1)), axis=-1)
    given = dict(
        rewards=of_turns.sum(-1), where=np.ones((8, 4), bool),
        turn=number(8, 4, 3), turn_rewards=of_turns)
    totals = turns.turns(**given, scale=scale)[..., 0]
    if by_turn:
      assert not np.any(totals), size
    # A difference of 1 in 10,000 is one.
    given['rewards'][:, 0] *= 1.0001
    assert np.all(turns.turns(**given, scale=scale, by_turn=by_turn)[:, 0, 0])


def test_one_turn_is_grpo():
  given, _ = random(1)
  turn = np.zeros_like(given['turn'])
  given.update(turn=turn, turn_rewards=np.zeros((4, 8, 1)))
  got = turns.turns(**given)
  want = advantages.grpo(given['rewards'], where=given['where'])
  np.testing.assert_allclose(
      got, np.broadcast_to(np.asarray(want)[..., None], turn.shape),
      rtol=rounding(8, 16), atol=rounding(16))
