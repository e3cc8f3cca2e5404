"""Tests of the advantages."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import advantages
from tests.helpers.tolerance import rounding
from tests.reference import advantages as twin

NAMES = sorted(advantages.ADVANTAGES)


def close(got, want):
  """Compares advantages of which float32 has only rounded sums.

  The mean is a sum over the group and std at most one over all rewards; 16 is
  for single operations.
  """
  np.testing.assert_allclose(
      got, want, rtol=0, atol=rounding(
          np.size(want), 16, magnitude=np.abs(want).max()))


@pytest.mark.parametrize('name', NAMES)
def test_equals_the_twin_with_invalid_samples(name):
  rng = np.random.default_rng(0)
  rewards = rng.normal(size=(3, 5, 6)).astype(np.float32)
  where = rng.random(rewards.shape) < 0.7
  where[0, 0] = False
  where[0, 1] = np.arange(6) == 2
  where[0, 2] = True
  got = advantages.ADVANTAGES[name](rewards, where=where)
  close(got, twin.advantages(name, rewards, where))
  assert np.all(np.asarray(got)[~where] == 0)


@pytest.mark.parametrize('ddof', [0, 1])
@pytest.mark.parametrize('name', ['grpo', 'reinforce_pp', 'gdpo'])
def test_ddof_and_eps(name, ddof):
  rewards = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
  got = advantages.ADVANTAGES[name](rewards, ddof=ddof, eps=0.1)
  want = twin.advantages(name, rewards, np.ones((4, 5), bool), ddof, 0.1)
  close(got, want)


# Of the group [0, 0, 1, 1]: mean 1/2, variance (4 * 1/4) / 3 = 1/3 with
# ddof=1, so std 3 ** -.5; the others of a 1 have mean 1/3, those of a 0 2/3.
# Beside [0, 4], padded by two invalid samples: mean 2, std sqrt(8); the other
# of 4 is 0. The batch's centred rewards have squares 4 * 1/4 + 2 * 4 = 9 over
# 6 samples: std sqrt(9 / 5). GDPO's of one reward are GRPO's over the std of
# their batch, sqrt((4 * .75 + 2 * .5) / 5).
GOLDEN = {
    'reinforce': [[0, 0, 1, 1], [0, 4, 0, 0]],
    'rloo': [[-2 / 3, -2 / 3, 2 / 3, 2 / 3], [-4, 4, 0, 0]],
    'grpo': [[-0.866025, -0.866025, 0.866025, 0.866025],
             [-0.707107, 0.707107, 0, 0]],
    'maxrl': [[-1, -1, 1, 1], [-1, 1, 0, 0]],
    'dr_grpo': [[-0.5, -0.5, 0.5, 0.5], [-2, 2, 0, 0]],
    'reinforce_pp': [[-0.372678, -0.372678, 0.372678, 0.372678],
                     [-1.490712, 1.490712, 0, 0]],
    'gdpo': [[-0.968246, -0.968246, 0.968246, 0.968246],
             [-0.790569, 0.790569, 0, 0]],
}


@pytest.mark.parametrize('name', NAMES)
def test_golden_and_invalid_rewards_are_inert(name):
  where = np.array([[True] * 4, [True, True, False, False]])
  integers = np.array([[0, 0, 1, 1], [0, 4, 7, -9]])
  f = jax.jit(advantages.ADVANTAGES[name])
  got = f(jnp.asarray(integers), where=where)
  assert got.dtype == jnp.float32
  # The golden values have 6 digits and leave out eps, a few 1e-6 of a std.
  np.testing.assert_allclose(
      got, GOLDEN[name], rtol=rounding(8, 16) + 3e-6, atol=5e-7)
  for garbage in (np.nan, np.inf, -np.inf, 1e30):
    rewards = np.where(where, integers, garbage).astype(np.float32)
    np.testing.assert_array_equal(f(rewards, where=where), got)


@pytest.mark.parametrize('name', sorted(advantages.GROUP_RELATIVE))
def test_no_signal_is_exactly_zero(name):
  f = jax.jit(advantages.ADVANTAGES[name])
  if 'eps' in inspect.signature(advantages.ADVANTAGES[name]).parameters:
    assert not np.any(advantages.ADVANTAGES[name](np.ones((2, 3)), eps=0.0))
  for n in (1, 3, 7):
    for value in (0.1, 1 / 3, -7.3, 1e6):  # n * 0.1 / n need not be 0.1
      equal = np.full((2, n), value, np.float32)
      assert not np.any(f(equal)), (n, value)
  lone = f(np.float32([[5, 1, 2], [3, 3, 3]]),
           where=np.array([[True, False, False], [True] * 3]))
  assert not np.any(lone)
  assert not np.any(f(np.ones((2, 3)), where=np.zeros((2, 3), bool)))


def test_a_near_tie_keeps_its_precision():
  # 1e6 + {0, 1, 2}: the mean is exact only when measured from the best.
  rewards = np.float32([1e6, 1e6 + 1, 1e6 + 2])
  np.testing.assert_array_equal(advantages.dr_grpo(rewards), [-1, 0, 1])


def test_group_relative_names_what_a_lone_sample_cannot_feed():
  for name, f in advantages.ADVANTAGES.items():
    silent = not np.any(f(np.float32([[2.0], [5.0]])))
    assert silent == (name in advantages.GROUP_RELATIVE)


def test_maxrl_golden():
  rewards = np.float32([[1, 0, 0, 0], [0, 0, 0, 0], [-1, -3, 0, 0]])
  np.testing.assert_array_equal(
      advantages.maxrl(rewards), [[3, -1, -1, -1], [0] * 4, [0] * 4])


def test_gdpo_standardises_each_reward_by_itself():
  """As the sum of GRPO's of each reward among the samples that it counts."""
  rng = np.random.default_rng(2)
  separate = rng.normal(size=(4, 6, 3)).astype(np.float32) * [1, 50, .01]
  separate[rng.random(separate.shape) < .2] = np.nan
  separate[0] = [1, np.nan, 3]  # no signal
  separate[1, :, 1] = 7
  where = rng.random((4, 6)) < .8
  separate[~where] = 1e6  # means nothing
  weights = 1.0, .5, -2.0
  want = sum(w * twin.advantages(
      'grpo', separate[..., k], where & ~np.isnan(separate[..., k]))
             for k, w in enumerate(weights))
  rewards = np.zeros((4, 6), np.float32)  # their sum is not used
  given = dict(where=where, separate=separate.astype(np.float32),
               weights=weights)
  close(advantages.gdpo(rewards, per_group=True, **given), want)
  got = np.asarray(advantages.gdpo(rewards, **given))
  close(got, want / (want[where].std(ddof=1) + 1e-6))
  assert not got[0].any() and not got[~where].any()
  # Two rewards are twice one; for GRPO they are the same (paper, section 2).
  two = np.float32([[[0, 0], [0, 1]], [[0, 0], [1, 1]]])
  one, both = advantages.gdpo(two.sum(-1), separate=two)
  close(both, 2 * np.asarray(one))
  np.testing.assert_allclose(
      *advantages.grpo(two.sum(-1)), rtol=rounding(8, 16) + 3e-6)
