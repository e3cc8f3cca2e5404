"""Tests of the choice of static lengths, against all choices there are."""

import itertools

import numpy as np
import pytest

from jaxrl_llm.ops import buckets


def padded(sizes, lengths):
  """Returns the sum of sizes, each padded to the shortest length that fits."""
  return sum(min(x for x in lengths if x >= size) for size in sizes)


@pytest.mark.parametrize('seed', range(20))
def test_no_other_lengths_pad_less(seed):
  rng = np.random.default_rng(seed)
  full = int(rng.integers(1, 13))
  sizes = rng.integers(1, full + 1, rng.integers(1, 30))
  for most in range(4):
    got = buckets.choose(sizes, full=full, max_extra=most, min_saving=0.0)
    best = min(
        padded(sizes, [*x, full])
        for x in itertools.combinations(range(1, full), min(most, full - 1)))
    assert padded(sizes, [*got, full]) == best
    assert len(got) <= most
    assert list(got) == sorted({*got} - {full})


def test_a_length_that_saves_too_little_is_left_out():
  # 10 + 90 x 100 padded to 100 are 10,000; a length of 10 saves 900 of them.
  sizes = [10] * 10 + [100] * 90
  assert buckets.choose(sizes, full=100, min_saving=0.08) == (10,)
  assert buckets.choose(sizes, full=100, min_saving=0.1) == ()
  assert buckets.choose([100], full=100) == ()
  assert buckets.choose([], full=100) == ()


@pytest.mark.parametrize('full, unit', [
    (31, 1), (63, 1), (64, 2), (288, 8), (4096, 128)])
def test_lengths_are_multiples_of_a_power_of_two(full, unit):
  sizes = np.random.default_rng(0).integers(1, full, 1000)
  got = buckets.choose(sizes, full=full)
  assert got and all(x % unit == 0 for x in got)
  assert max(sizes[sizes <= got[-1]]) > got[-1] - unit


def test_a_prefill_pads_to_its_longest_prompt():
  # One prompt in ten is long. Two prompts are both short in 81% of prefills,
  # a hundred of them in none.
  lengths = [16] * 9 + [200]
  assert buckets.of_prompts(lengths, max_prompt=256, together=2) == (16, 200)
  assert buckets.of_prompts(lengths, max_prompt=256, together=100) == (200,)
