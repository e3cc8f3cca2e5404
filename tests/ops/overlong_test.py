"""Tests of the handling of truncated responses."""

import jax
import numpy as np

from jaxrl_llm.ops import overlong


def test_truncated_rows_leave_the_loss():
  mask = np.array([[1, 1, 0], [1, 1, 1]], bool)
  got = overlong.mask_truncated(mask, np.array([False, True]))
  np.testing.assert_array_equal(got, [[1, 1, 0], [0, 0, 0]])


def test_soft_penalty_golden():
  # DAPO's own numbers: 20480 tokens, of which the last 4096 are punished.
  length = np.array([1, 16384, 17408, 18432, 20480, 30000])
  penalty = jax.jit(overlong.soft_penalty)
  got = penalty(length, budget=20480, window=4096)
  np.testing.assert_allclose(got, [0, 0, -0.25, -0.5, -1, -1])
  # A window of 0 leaves a step just above the budget.
  got = penalty(np.array([9, 10, 11]), budget=10, window=0)
  np.testing.assert_allclose(got, [0, 0, -1])
