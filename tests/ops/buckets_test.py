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
    got = buckets.choose(sizes, full=full, most=most, worth=0.0)
    best = min(
        padded(sizes, [*x, full])
        for x in itertools.combinations(range(1, full), min(most, full - 1)))
    assert padded(sizes, [*got, full]) == best
    assert len(got) <= most
    assert list(got) == sorted({*got} - {full})


def test_a_length_that_saves_too_little_is_left_out():
  # 10 + 90 x 100 padded to 100 are 10,000; a length of 10 saves 900 of them.
  sizes = [10] * 10 + [100] * 90
  assert buckets.choose(sizes, full=100, worth=0.08) == (10,)
  assert buckets.choose(sizes, full=100, worth=0.1) == ()
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


def _rows(lengths=(10,), **options):
  return buckets.of_rows(lengths, **{**dict(
      max_prompt=54, max_response=10, prompts=8, samples=4, updates=1,
      microbatch=1), **options})


def test_rows_are_prompts_with_responses():
  # All prompts are equal: truncated responses make rows of 20 tokens, the
  # others all lengths from 11.
  assert _rows()[-1] == 20
  assert all(11 <= x <= 20 for x in _rows())
  assert _rows(max_prompt=10)[-1] < 20  # the full length is no choice
  # Of 32 rows in one microbatch, one is truncated.
  assert _rows(microbatch=32) == (20,)


def test_samples_share_their_prompt():
  # Almost every microbatch of a group has a truncated response, so its length
  # is that of one prompt or the other, and 10.
  assert {12, 54} <= {*_rows((2, 44), prompts=1, microbatch=4)}


def _responses(**options):
  return buckets.of_responses(
      **{**dict(max_response=10, rows=32, microbatch=1), **options})


def test_responses_are_sorted_into_microbatches():
  # Half of the responses have any length from 1 to 10, the others 10.
  assert _responses(most=9, microbatch=1)[0] <= 2
  # Of 32 rows in one microbatch, one has 10 tokens.
  assert _responses(microbatch=32) == ()
  # The shorter quarter of 32 rows has about 5 tokens at most.
  assert {*_responses(microbatch=8)} & {4, 5, 6}
  assert len(_responses(most=2)) == 2


def test_lists_have_lengths_at_a_constant_ratio():
  # 2 x 1024 + 511 = 2559, rounded up to multiples of 64.
  got = buckets.of_lists(max_prompt=512, max_response=1024, samples=16, each=2)
  assert got == (768, 896, 1088, 1280, 1536, 1792, 2176, 2560)
  assert all(a * 1.13 < b < a * 1.27 for a, b in zip(got, got[1:]))
  # 3 rows of 2 groups: 3 x 4 + 2 x 2 = 16, of at most 3 x 6 = 18.
  assert buckets.of_lists(
      max_prompt=3, max_response=4, samples=2, each=3, most=1) == (16,)
  # A row alone is always full.
  assert buckets.of_lists(
      max_prompt=3, max_response=4, samples=2, each=1, most=1) == (6,)
