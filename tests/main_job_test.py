"""Test of the main job, run to its end, against the README's results."""

import statistics

import pytest

from benchmarks import countdown


@pytest.mark.slow
def test_three_seeds_learn(tmp_path):
  found = [countdown.run(seed, tmp_path / str(seed)) for seed in (0, 1, 2)]
  start, final = (
      statistics.mean(f['pass@1'][end] for f in found)
      for end in ('start', 'final'))
  assert final >= .6 and final - start >= .3
