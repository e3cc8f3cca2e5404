"""Tests of batches in NumPy against plain lists."""

import numpy as np
import pytest

from jaxrl_llm.loop import rollout
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.types import RolloutTokens
from tests.helpers.tolerance import rounding
from tests.loop.rollout_test import problem, rollouts, TOKENIZER


def test_observations_are_no_part_of_the_loss():
  rng = np.random.default_rng(2)
  generated = rng.random((12, 5)) < .5
  prompts = rollout.encode([problem(i, 'a') for i in range(3)], TOKENIZER, 6)
  kept = stored(prompts, [[1, 2, 3, 4]] * 12, generated=generated)
  rows, trained = np.array([5, -1, 2, 5]), np.array([True, True, False, True])
  got = rows_lib.learner_batch(kept, rows, np.zeros(4), trained)
  for r, row in enumerate(rows):
    want = [trained[r] and row >= 0 and t < 4 and generated[row, t]
            for t in range(5)]
    assert got.mask[r].tolist() == want
    # They are read like any other token.
    assert got.response_length[r] == (4 if row >= 0 else 0)


def stored(prompts, responses, **logprobs):
  """Stores responses to the prompts 'a', 'bcab', 'ccc', four to each."""
  sampled = rollouts(responses, [False] * len(responses))
  row = np.arange(len(responses)) // 4
  return RolloutTokens(
      prompt=prompts.tokens[row], prompt_length=prompts.length[row],
      response=sampled.tokens, length=sampled.length,
      behaviour_logprobs=sampled.logprobs, **logprobs)


@pytest.mark.parametrize('scored', [False, True])
def test_learner_batch_against_lists(scored):
  """Rows of a store in another order, some of them twice, and filler."""
  rng = np.random.default_rng(0)
  prompts = rollout.encode(
      [problem(i, p) for i, p in enumerate(('a', 'bcab', 'ccc'))],
      TOKENIZER, 6)
  responses = [
      rng.integers(0, 5, rng.integers(1, 6)).tolist() for _ in range(12)]
  old = rng.normal(size=(12, 5)).astype(np.float32)
  rows = np.array([7, -1, 0, 11, 7, -1, 3])
  advantages = rng.normal(size=7).astype(np.float32)
  advantages[1] = np.nan  # of filler: it may be anything
  trained = np.arange(7) % 3 > 0
  store = stored(prompts, responses, old_logprobs=old)
  got = rows_lib.learner_batch(
      store if scored else store.without('score'), rows, advantages, trained)

  for r, row in enumerate(rows):
    prompt = TOKENIZER.encode(('a', 'bcab', 'ccc')[row // 4])
    prompt, response = (prompt, responses[row]) if row >= 0 else ([], [])
    n = len(response)
    sequence = [*prompt, *response]
    assert got.tokens[r].tolist() == sequence + [0] * (11 - len(sequence))
    assert got.prompt_length[r] == max(len(prompt), 1)
    assert got.response_length[r] == n
    assert got.mask[r].tolist() == [bool(trained[r])] * n + [False] * (5 - n)
    np.testing.assert_allclose(
        got.behaviour_logprobs[r],
        [-row - t / 10 for t in range(n)] + [0] * (5 - n),
        rtol=rounding(1))  # rounded once to float32
    assert got.advantages[r] == (advantages[r] if n else 0)
    if scored:
      np.testing.assert_array_equal(
          got.old_logprobs[r], old[row] if n else np.zeros(5))
  assert (got.old_logprobs is not None) == scored
  assert got.anchor_logprobs is None
  kinds = dict(
      tokens=np.int32, prompt_length=np.int32, response_length=np.int32,
      mask=bool, behaviour_logprobs=np.float32, advantages=np.float32)
  kinds |= dict(old_logprobs=np.float32) if scored else {}
  assert {k: v.dtype for k, v in got.columns.items()} == kinds


def test_a_batch_of_an_empty_store_is_filler():
  store = RolloutTokens(
      prompt=np.zeros((0, 3), np.int32), prompt_length=np.zeros(0, np.int32),
      response=np.zeros((0, 2), np.int32), length=np.zeros(0, np.int32),
      behaviour_logprobs=np.zeros((0, 2), np.float32))
  got = rows_lib.learner_batch(
      store, np.full(4, -1), np.zeros(4), np.zeros(4, bool))
  assert got.tokens.shape == (4, 5) and not got.response_length.any()


def minibatches(rows=12, **options):
  """Returns the mini-batches of rows 0, 1, ... as lists."""
  return [part.tolist() for part in rows_lib.minibatches(
      np.arange(rows), **options)]


def test_minibatches_visit_each_row_once_per_epoch():
  got = minibatches(epochs=3, size=3, seed=(0, 5))
  assert [len(rows) for rows in got] == [3] * 12
  epochs = [sum(got[i:i + 4], []) for i in (0, 4, 8)]
  for epoch in epochs:
    assert sorted(epoch) == list(range(12)) and epoch != list(range(12))
  assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize('rows, size, count', [(10, 4, 3), (3, 4, 1)])
def test_what_does_not_fill_the_last_minibatch_is_filler(rows, size, count):
  got = minibatches(rows, epochs=2, size=size, seed=(0, 5))
  assert [len(part) for part in got] == [size] * 2 * count
  missing = count * size - rows
  for epoch in (sum(got[:count], []), sum(got[count:], [])):
    assert sorted(epoch[:rows]) == list(range(rows))
    assert epoch[rows:] == [-1] * missing


def test_filler_among_the_rows_is_shuffled_like_a_row():
  rows = np.array([0, -1, 2, -1, 4, 5])
  got = [*rows_lib.minibatches(rows, epochs=1, size=2, seed=(0, 1))]
  assert sorted(np.concatenate(got)) == sorted(rows)
  order = np.concatenate(minibatches(6, epochs=1, size=2, seed=(0, 1)))
  np.testing.assert_array_equal(np.concatenate(got), rows[order])


def test_minibatches_depend_on_the_seed_alone():
  first = minibatches(epochs=2, size=6, seed=(0, 5))
  assert first == minibatches(epochs=2, size=6, seed=(0, 5))
  for seed in ((0, 6), (1, 5), (5, 0)):
    assert first != minibatches(epochs=2, size=6, seed=seed)


def test_one_update_keeps_the_order():
  assert minibatches(epochs=2, size=12, seed=(0, 0)) == [list(range(12))] * 2
