"""Test of bins of prompts that are computed at several widths."""

import numpy as np

from jaxrl_llm.learner import prompts
from tests.learner import prompts_test, update_test


def test_bins_are_computed_at_a_width_that_holds_them(monkeypatch):
  """Widths of 2, 3 and 4 tokens; prompts have 0 to 4 without their last."""
  monkeypatch.setattr(prompts, '_WIDTH', 2)
  sizes = prompts.Sizes.of(2, update_test.L, (update_test.T,))
  assert (sizes.width, sizes.widths) == (4, (2, 3, 4))
  batch = prompts_test._batch()
  want, _ = update_test._run(batch)
  got, metrics = update_test._run(
      batch, real=True, plan='waves', buckets=(3,))
  update_test._close(got.params, want.params)
  # By hand, as in prompts_test, with each bin at the shortest width.
  needed = (batch.response_length > 0) & batch.mask.any(1)
  first = [prompts_test.GROUPS.index(g) for g in {
      *np.array(prompts_test.GROUPS)[needed]}]
  before = np.sort(batch.prompt_length[first] - 1)[::-1]
  bins = []  # Best fit; each of the bins has 4 tokens.
  for n in before[before > 0]:
    fits = [i for i, used in enumerate(bins) if used + n <= 4]
    if fits:
      bins[max(fits, key=lambda i: bins[i])] += n
    else:
      bins.append(n)
  longest = -np.sort(-batch.response_length[needed])[::2]
  lengths = np.array([3, update_test.T])
  rows = 2 * lengths[np.searchsorted(lengths, longest)].sum()
  computed = rows + sum(max(n, 2) for n in bins)
  real = before.sum() + batch.response_length[needed].sum()
  assert min(bins) < 4  # else the test would show nothing
  np.testing.assert_allclose(metrics['real_tokens'], real / computed, rtol=1e-6)
