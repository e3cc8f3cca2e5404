"""Tests of rewards to advantages, for every advantage."""

import math

import jax
import numpy as np
import pytest

from jaxrl_llm.ops.advantages import ADVANTAGES
from jaxrl_llm.prepare import choices
from tests.helpers import tiny
from tests.helpers.tolerance import rounding
from tests.reference import advantages as reference
from tests.reference import pkpo as twin

LENGTH = np.full((4, 4), 3, np.int32)


def batch(seed, share=.6):
  """Returns rewards, and masks of valid and of truncated responses."""
  rng = np.random.default_rng(seed)
  rewards = rng.normal(size=(4, 4)).astype(np.float32)
  valid, truncated = rng.random((2, 4, 4)) < share
  rewards[~valid] = 1e6  # means nothing
  return rewards, valid, truncated


def close(got, want):
  """Compares advantages of 16 samples.

  The mean is over 4 of them, the standard deviation over 16 at most. Single
  operations are 32: a transform's shares are the exp of a logarithm.
  """
  np.testing.assert_allclose(
      got, want, rtol=0,
      atol=rounding(4, 16, 32, magnitude=np.abs(want).max()))


@pytest.mark.parametrize('name', ADVANTAGES)
def test_the_advantage_is_among_valid_samples(name):
  program = choices.advantages(
      tiny.load(advantage=name, overlong__mode='mask'))
  rewards, valid, truncated = batch(1)
  got = program.of_batch(rewards, valid, LENGTH, truncated, np.uint32(0))
  close(got.advantages, reference.advantages(name, rewards, valid))
  np.testing.assert_array_equal(got.trained, valid & ~truncated)
  assert not any(name.startswith('pkpo') for name in got.metrics)


@pytest.mark.long
@pytest.mark.parametrize('transform', ['s', 'sloo', 'sloo_minus_one'])
@pytest.mark.parametrize('batch_std', [False, True])
def test_pkpo_is_n_times_the_transform(transform, batch_std):
  """With k annealed, groups of 0 to 4, and nothing compiled twice."""
  program = choices.advantages(tiny.load(
      advantage='pkpo', pkpo__k='0:3,5:2,7:1', pkpo__transform=transform,
      pkpo__batch_std=batch_std))
  spare = transform == 'sloo'
  lowered = 0
  for step, k in ((0, 3), (4, 3), (5, 2), (7, 1), (900, 1)):
    rewards, valid, truncated = batch(step)
    got = program.of_batch(rewards, valid, LENGTH, truncated, np.uint32(step))
    want, short = np.zeros((4, 4)), 0
    for row, group, mask in zip(want, rewards, valid):
      n = mask.sum()
      short += n - spare < k
      if n > spare:
        row[mask] = n * getattr(twin, transform)(
            np.float64(group[mask]), min(k, n - spare))
    if batch_std:
      want /= want[valid].std(ddof=1) + 1e-6
    close(got.advantages, want)
    assert got.metrics['pkpo/k'] == k
    assert got.metrics['pkpo/k_lowered'] == short / 4
    lowered += short
  assert lowered > 2
  assert program.of_batch._cache_size() == 1


def test_pkpo_of_1_is_rloo_to_the_bit():
  args = *batch(3)[:2], LENGTH, batch(3)[2], np.uint32(0)
  for mode in ('none', 'mask'):
    one, rloo = (
        choices.advantages(
            tiny.load(overlong__mode=mode, **fields)).of_batch(*args)
        for fields in (dict(advantage='pkpo', pkpo__k=1),
                       dict(advantage='rloo')))
    np.testing.assert_array_equal(one.advantages, rloo.advantages)
    np.testing.assert_array_equal(one.trained, rloo.trained)


def test_pass_at_k_is_of_the_rewards_as_they_were_given():
  """Over groups with enough valid samples; without penalties."""
  program = choices.advantages(tiny.load(
      overlong__mode='penalty', overlong__window=9, eval_k=(1, 2, 3, 4, 8)))
  rewards = np.float32([
      [1, 0, 1, .9], [0, 2, 0, 0], [1, 1, 9, 9], [0, 9, 9, 9]])
  valid = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]],
                   bool)
  length, all_there = np.full((4, 4), 10, np.int32), np.ones(4, bool)
  got = jax.device_get(program.of_wave(
      rewards, valid, length, valid, all_there, np.uint32(0)))
  want = {1: [1 / 2, 1 / 4, 1, 0], 2: [5 / 6, 1 / 2, 1], 3: [1, 3 / 4],
          4: [1, 1]}
  assert got.metrics == pytest.approx(
      {f'reward/pass@{k}': np.mean(values) for k, values in want.items()},
      rel=rounding(4, 16))  # a mean over 4 of the exp of a logarithm
  # Every response pays the same penalty.
  found = program.of_batch(rewards, valid, length, ~valid, np.uint32(0))
  close(found.advantages, reference.advantages('grpo', rewards, valid))
  # Samples that are no probe do not count in the metrics.
  some = program.of_wave(
      rewards, valid, length, valid & (np.arange(4) < 2), all_there,
      np.uint32(0))
  assert some.metrics['reward/pass@1'] == pytest.approx(
      np.mean([.5, .5, 1, 0]), rel=rounding(4, 16))
  nothing = program.of_wave(
      rewards, valid, LENGTH, np.zeros_like(valid), all_there, np.uint32(0))
  assert np.isnan(nothing.metrics['reward/pass@1'])


def signal(name, c, k=2):
  """Returns the sum of |advantage| of a group of 4 with c right, by hand."""
  if name == 'reinforce':
    return c
  if name == 'pkpo':  # c C(n - c, k - 1) / C(n, k) times n
    return 4 * c * math.comb(4 - c, k - 1) / math.comb(4, k)
  spread = 2 * c * (4 - c) / 4  # sum of |r - mean|
  if name == 'rloo':
    return spread * 4 / 3
  if name == 'maxrl':
    return spread / max(c / 4, 1e-9)
  if name in ('grpo', 'gdpo'):
    return spread / (math.sqrt(c * (4 - c) / 4 / 3) + 1e-6)
  return spread  # dr_grpo; reinforce_pp without its batch's scale


@pytest.mark.parametrize('name', [*ADVANTAGES, 'pkpo'])
def test_signal_and_gain_are_those_of_the_advantage(name):
  """A penalty and the validity count in the gain, the batch does not."""
  fields = dict(pkpo__k=2, pkpo__batch_std=True) if name == 'pkpo' else {}
  program = choices.advantages(tiny.load(advantage=name, **fields))
  rewards, valid, _ = batch(4)
  rewards[0], valid[0] = [1, 0, 1, 0], True
  complete = np.array([True, True, False, True])
  got = jax.device_get(program.of_wave(
      rewards, valid, LENGTH, valid, complete, np.uint32(0)))
  want = [signal(name, c) for c in range(5)]
  np.testing.assert_allclose(
      got.signal, want, rtol=0, atol=rounding(4, 16, 32, magnitude=8))
  assert got.gain[0] == pytest.approx(want[2], rel=rounding(4, 16, 32))
  assert np.isnan(got.gain).tolist() == (~complete).tolist()
  alone = jax.device_get(program.of_wave(
      rewards, valid & (np.arange(4) == 1)[:, None], LENGTH, valid, complete,
      np.uint32(0)))
  assert alone.gain[1] == got.gain[1] and alone.gain[3] == 0
  if name == 'maxrl':  # it takes no rewards below 0
    return
  penalised = choices.advantages(tiny.load(
      advantage=name, overlong__mode='penalty', overlong__window=10, **fields))
  length = np.array([[10, 0, 10, 0]] * 4, np.int32)  # 1 - 1 = 0: all equal
  found = penalised.of_wave(
      rewards, valid, length, valid, complete, np.uint32(0))
  assert found.gain[0] == 0


def test_separate_rewards_reach_the_advantage_that_takes_them():
  """In batches, and without the batch's scale in the gain."""
  config = tiny.load(advantage='gdpo')
  with config.unlocked():
    config.task.update(reward=('a.py:f', 'a.py:g'), reward_weights=(1.0, 0.5))
  program = choices.advantages(config)
  _, valid, truncated = batch(5)
  separate = np.random.default_rng(5).normal(size=(4, 4, 2)).astype(np.float32)
  nothing = np.zeros((4, 4), np.float32)
  whole = sum(w * reference.advantages('grpo', separate[..., k], valid)
              for k, w in enumerate((1.0, 0.5)))
  got = program.of_batch(
      nothing, valid, LENGTH, truncated, np.uint32(0),
      {'separate': separate})
  close(got.advantages, whole / (whole[valid].std(ddof=1) + 1e-6))
  wave = program.of_wave(
      nothing, valid, LENGTH, valid, np.ones(4, bool), np.uint32(0),
      {'separate': separate})
  close(wave.gain, np.abs(whole).sum(1))
