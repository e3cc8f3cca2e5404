"""Tests of batches in NumPy against plain lists."""

import numpy as np
import pytest

from jaxrl_llm import rollout
from jaxrl_llm.learner import batches
from jaxrl_llm.types import LearnerBatch
from tests.rollout_test import problem, rollouts, TOKENIZER
from tests.tolerance import rounding


def test_learner_batch_against_lists():
  rng = np.random.default_rng(0)
  prompts = rollout.encode(
      [problem(i, p) for i, p in enumerate(('a', 'bcab', 'ccc'))],
      TOKENIZER, 6)
  requests = rollout.grouped_requests(prompts.problem_id, 4, 5)
  responses = [
      rng.integers(0, 5, rng.integers(1, 6)).tolist() for _ in range(12)]
  sampled = rollouts(responses, [False] * 12)
  advantages = rng.normal(size=12).astype(np.float32)
  keep, trained = np.arange(12) % 3 > 0, np.arange(12) % 4 > 0
  got = batches.learner_batch(
      prompts, requests, sampled, advantages, keep=keep, trained=trained)

  for r, response in enumerate(responses):
    prompt = TOKENIZER.encode(('a', 'bcab', 'ccc')[r // 4])
    response = response if keep[r] else []
    row = [*prompt, *response]
    assert got.tokens[r].tolist() == row + [0] * (11 - len(row))
    assert got.prompt_length[r] == len(prompt)
    assert got.response_length[r] == len(response)
    n = len(response)
    assert got.mask[r].tolist() == [bool(trained[r])] * n + [False] * (5 - n)
    np.testing.assert_allclose(
        got.behaviour_logprobs[r],
        [-r - t / 10 for t in range(n)] + [0] * (5 - n),
        rtol=rounding(1))  # rounded once to float32
    assert got.advantages[r] == (advantages[r] if keep[r] else 0)
  assert got.old_logprobs is None and got.anchor_logprobs is None
  kinds = dict(
      tokens=np.int32, prompt_length=np.int32, response_length=np.int32,
      mask=bool, behaviour_logprobs=np.float32, advantages=np.float32)
  assert {k: v.dtype for k, v in vars(got).items() if v is not None} == kinds


def test_a_row_left_out_may_hold_anything():
  """Advantages of dropped rows may be NaN, their log-probs infinite."""
  prompts = rollout.encode([problem(0, 'a')], TOKENIZER, 2)
  sampled = rollouts([[2, 1], [3, 1]], [False] * 2)
  sampled.logprobs[0] = -np.inf
  got = batches.learner_batch(
      prompts, rollout.grouped_requests(prompts.problem_id, 2, 5), sampled,
      np.array([np.nan, 1], np.float32), keep=np.array([False, True]),
      trained=np.array([True, True]))
  for name in ('advantages', 'behaviour_logprobs'):
    assert np.isfinite(getattr(got, name)).all()
  assert not got.mask[0].any() and got.mask[1].sum() == 2


@pytest.mark.parametrize('behaviour, tempered, want', [
    ('tempered', True, -7), ('sampled', True, -.5), ('tempered', False, -.5),
    ('sampled', False, -.5)])
def test_behaviour_logprobs_are_those_of_the_field(behaviour, tempered, want):
  prompts = rollout.encode([problem(0, 'a')], TOKENIZER, 2)
  sampled = rollouts([[2, 1]], [False])
  sampled.logprobs[:] = -.5
  if tempered:
    sampled = sampled.replace(
        tempered_logprobs=np.full_like(sampled.logprobs, -7))
  got = batches.learner_batch(
      prompts, rollout.grouped_requests(prompts.problem_id, 1, 5), sampled,
      np.ones(1, np.float32), keep=np.array([True]), trained=np.array([True]),
      behaviour=behaviour)
  assert got.behaviour_logprobs.tolist() == [[want, want, 0, 0, 0]]


def numbered(rows):
  """Makes a batch in which every field contains the row's number."""
  x = np.arange(rows, dtype=np.int32)
  return LearnerBatch(
      tokens=np.tile(x[:, None], 3), prompt_length=x, response_length=x,
      mask=np.tile(x[:, None] % 2 == 0, 2), advantages=x.astype(np.float32),
      behaviour_logprobs=np.tile(x[:, None].astype(np.float32), 2),
      old_logprobs=np.tile(-x[:, None].astype(np.float32), 2))


def orders(**options):
  """Returns the row numbers of each minibatch; all fields must agree."""
  out = []
  for part in batches.minibatches(numbered(12), **options):
    row = part.prompt_length
    np.testing.assert_array_equal(part.tokens, np.tile(row[:, None], 3))
    np.testing.assert_array_equal(part.old_logprobs[:, 1], -row)
    np.testing.assert_array_equal(part.advantages, row)
    np.testing.assert_array_equal(part.mask[:, 0], row % 2 == 0)
    assert part.anchor_logprobs is None
    out.append(row.tolist())
  return out


def test_minibatches_visit_each_row_once_per_epoch():
  got = orders(epochs=3, updates=4, seed=(0, 5))
  assert [len(rows) for rows in got] == [3] * 12
  epochs = [sum(got[i:i + 4], []) for i in (0, 4, 8)]
  for epoch in epochs:
    assert sorted(epoch) == list(range(12)) and epoch != list(range(12))
  assert len({tuple(epoch) for epoch in epochs}) == 3


def test_minibatches_depend_on_the_seed_alone():
  first = orders(epochs=2, updates=2, seed=(0, 5))
  assert first == orders(epochs=2, updates=2, seed=(0, 5))
  for seed in ((0, 6), (1, 5), (5, 0)):
    assert first != orders(epochs=2, updates=2, seed=seed)


def test_one_update_keeps_the_order():
  assert orders(epochs=2, updates=1, seed=(0, 0)) == [list(range(12))] * 2
