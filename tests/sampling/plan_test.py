"""Tests of the plan over shards: every request is served exactly once."""

import numpy as np
import pytest

from jaxrl_llm.sampling import plan as plan_lib
from jaxrl_llm.types import Prompts, Requests


def _make(rng, groups, samples, prompts):
  """Makes `groups` groups of `samples` requests for random prompts."""
  tokens = rng.integers(0, 9, (prompts, 5)).astype(np.int32)
  rows = rng.permutation(prompts)[:groups].repeat(samples)
  n = len(rows)
  return (
      Prompts(tokens, rng.integers(1, 6, prompts).astype(np.int32),
              np.arange(100, 100 + prompts, dtype=np.int32)),
      Requests(rows.astype(np.int32), np.arange(n, dtype=np.int32),
               rng.integers(1, 8, n).astype(np.int32)))


def test_every_request_is_served_once_with_its_own_prompt():
  rng = np.random.default_rng(0)
  for _ in range(50):
    shards, samples = rng.integers(1, 9), rng.integers(1, 6)
    prompts, requests = _make(rng, rng.integers(0, 7), samples, 8)
    n = len(requests.prompt)
    requests = requests.replace(tokens=rng.integers(0, 9, (n, 7)))
    plan = plan_lib.plan(
        prompts, requests, shards=shards, requests_per_shard=-(-n // shards),
        prompts_per_shard=8)
    assert plan.count.sum() == n
    assert plan.count.max() - plan.count.min() <= 1
    capacity = -(-n // shards)
    row = 0
    for shard in range(shards):
      for i in range(plan.count[shard]):
        at = shard * capacity + i
        assert plan.order[row] == at
        local = shard * 8 + plan.requests.prompt[at]
        original = requests.prompt[row]
        np.testing.assert_array_equal(
            plan.prompts.tokens[local], prompts.tokens[original])
        assert plan.prompts.length[local] == prompts.length[original]
        assert plan.prompts.problem_id[local] == prompts.problem_id[original]
        assert plan.requests.sample[at] == requests.sample[row]
        assert plan.requests.budget[at] == requests.budget[row]
        np.testing.assert_array_equal(
            plan.requests.tokens[at], requests.tokens[row])
        row += 1
    every = np.arange(shards * capacity)
    back = plan_lib.undo(plan.requests, plan, every)
    np.testing.assert_array_equal(back.sample, requests.sample)
    # Of a process that has some shards' rows alone.
    mine = every[rng.integers(0, 2, shards).repeat(capacity) > 0]
    back = plan_lib.undo(plan.requests.budget[mine], plan, mine)
    np.testing.assert_array_equal(
        back, np.where(np.isin(plan.order, mine), requests.budget, 0))


def test_requests_are_served_at_their_home():
  """Serves the rows of a wave that go on, each on the shard that it had."""
  rng = np.random.default_rng(1)
  for _ in range(50):
    shards = int(rng.integers(1, 6))
    prompts, requests = _make(rng, 6, 4, 8)
    home = plan_lib.shard_of(24, shards)
    left = np.flatnonzero(rng.random(24) < rng.random())
    requests = Requests(*(x[left] for x in (
        requests.prompt, requests.sample, requests.budget)))
    plan = plan_lib.plan(
        prompts, requests, shards=shards, requests_per_shard=24,
        prompts_per_shard=8, shard=home[left])
    assert plan.count.tolist() == [
        (home[left] == shard).sum() for shard in range(shards)]
    assert len({*plan.order.tolist()}) == len(left)
    for row, at in enumerate(plan.order):
      shard = home[left[row]]
      assert at // 24 == shard and at % 24 < plan.count[shard]
      assert plan.requests.sample[at] == requests.sample[row]
      np.testing.assert_array_equal(
          plan.prompts.tokens[8 * shard + plan.requests.prompt[at]],
          prompts.tokens[requests.prompt[row]])


def test_groups_stay_together():
  prompts, requests = _make(np.random.default_rng(1), 8, 4, 8)
  plan = plan_lib.plan(
      prompts, requests, shards=4, requests_per_shard=8, prompts_per_shard=2)
  np.testing.assert_array_equal(plan.count, [8] * 4)
  np.testing.assert_array_equal(
      plan.requests.prompt.reshape(4, 8), [[0] * 4 + [1] * 4] * 4)
  assert (plan.prompts.length > 0).all()


def test_filler_rows_are_empty():
  prompts, requests = _make(np.random.default_rng(2), 3, 1, 8)
  plan = plan_lib.plan(
      prompts, requests, shards=2, requests_per_shard=4, prompts_per_shard=5)
  np.testing.assert_array_equal(
      (plan.prompts.length > 0).reshape(2, 5).sum(1), plan.count)
  assert plan.prompts.tokens.shape == (10, 5)
  assert plan.requests.budget.shape == (8,)


def test_errors_name_what_does_not_fit():
  prompts, requests = _make(np.random.default_rng(3), 4, 2, 8)
  fits = dict(shards=2, requests_per_shard=4, prompts_per_shard=2)
  plan_lib.plan(prompts, requests, **fits)
  with pytest.raises(ValueError, match='8 requests .* requests_per_shard=3'):
    plan_lib.plan(prompts, requests, **{**fits, 'requests_per_shard': 3})
  with pytest.raises(ValueError, match='shard 0 serves 2 distinct prompts, '
                     'more than prompts_per_shard=1'):
    plan_lib.plan(prompts, requests, **{**fits, 'prompts_per_shard': 1})
  bad = requests.replace(prompt=requests.prompt + 8)
  with pytest.raises(ValueError, match='request 0 names prompt'):
    plan_lib.plan(prompts, bad, **fits)
  empty = prompts.replace(length=prompts.length * 0)
  with pytest.raises(ValueError, match='is empty'):
    plan_lib.plan(empty, requests, **fits)
