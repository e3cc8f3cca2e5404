"""Tests of lists of tokens against slow twins; updates are in prompts_test."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.learner import lists
from jaxrl_llm.ops import buckets, ragged
from tests.learner import update_test
from tests.ops.ragged_test import facts_of, L, T, tokens_of


def _load(rows, taken):
  """Counts the tokens of a list of some rows."""
  taken = [i for i in taken if rows.length[i]]
  prompts = {rows.prompt[i]: rows.before[i] for i in taken}
  return sum(rows.length[i] for i in taken) + sum(prompts.values())


@functools.partial(jax.jit, static_argnames=('shards', 'sizes'))
def _deal(rows, shards, sizes):
  return lists.deal(rows, shards=shards, sizes=sizes)


@pytest.mark.parametrize('each, lengths', [(1, ()), (2, (9, 15)), (3, (12,))])
@pytest.mark.parametrize('seed', range(6))
def test_deal(seed, each, lengths):
  """Every needed row has one place, in a list that is long enough."""
  shards, most = 2, 3
  rows = facts_of(seed, shards * each * most)
  sizes = lists.Sizes.of(each, L, T, lengths)
  got = jax.device_get(_deal(
      jax.tree.map(jnp.asarray, rows), shards, sizes))
  place = got.rows.reshape(most, shards, sizes.slots)
  real, computed, count = 0, 0, 0
  for microbatch, bucket in zip(place, got.bucket):
    loads = [_load(rows, [i for i in cell if i < len(rows.length)])
             for cell in microbatch]
    if max(loads):
      length = sizes.lengths[bucket]
      assert max(loads) <= length
      assert not bucket or max(loads) > sizes.lengths[bucket - 1]
      real, computed, count = (
          real + sum(loads), computed + shards * length, count + 1)
  assert (real, computed, count) == (got.real, got.computed, got.count)
  needed = np.flatnonzero(rows.length)
  assert count == -(-len(needed) // (shards * each))
  seen = [i for i in got.rows.ravel() if i < len(rows.length)]
  assert sorted(seen) == needed.tolist()


@pytest.mark.parametrize('shards, each, mean, least', [
    (8, 4, 400, .85), (32, 4, 400, .85), (32, 4, 250, .85), (16, 8, 700, .85),
    # A longest row is longer than two mean ones.
    (32, 2, 400, .75)])
def test_most_computed_tokens_are_real(shards, each, mean, least):
  """512 rows in groups of 16, of log-normal lengths up to 1024."""
  rng = np.random.default_rng(0)
  groups, samples, limits = 32, 16, dict(max_prompt=512, max_response=1024)
  spread = rng.normal(0, .3, (groups, 1)) + rng.normal(0, .5, (groups, samples))
  length = np.clip(mean * np.exp(spread), 1, 1024).astype(np.int32).ravel()
  before = np.clip(rng.normal(150, 50, groups), 0, 511).astype(np.int32)
  prompt = np.repeat(np.arange(groups), samples)
  sizes = lists.Sizes.of(each, 512, 1024, buckets.of_lists(
      **limits, samples=samples, each=each))
  got = _deal(ragged.Rows(*map(jnp.asarray, (
      prompt, before[prompt], length))), shards, sizes)
  assert got.real / got.computed >= least
  # Rows of a group are together: fewer tokens than with a prompt for each.
  assert got.real < .95 * (length.sum() + before[prompt].sum())


def test_lists_are_filled_to_the_lengths_there_are():
  """Equally long, of about 3040 tokens, they would be padded to 4000: 76%."""
  rng = np.random.default_rng(0)
  count, each, shards = 512, 4, 8
  rows = ragged.Rows(*map(jnp.asarray, (
      np.arange(count), np.zeros(count, np.int32),
      rng.integers(500, 1000, count, np.int32))))
  got = _deal(rows, shards, lists.Sizes.of(each, 512, 1024, (2000, 4000)))
  assert got.real / got.computed > .8
  assert {*got.bucket.tolist()} >= {0, 1}


def test_what_the_model_and_its_head_get():
  rng = np.random.default_rng(0)
  facts = facts_of(4, 6)
  tokens = rng.integers(1, 99, (6, L + T))
  ids = rng.integers(1, 99, (6, T, 2))
  static = ragged.Static(6 * (L + T), L, T)
  places = ragged.places(jax.tree.map(jnp.asarray, facts), 6)
  given = lists.inputs(jnp.asarray(tokens), places, static)
  targets, listed, needed = lists.targets(
      jnp.asarray(tokens), jnp.asarray(ids), places, static, 6 * T)
  assert needed.sum() == facts.length.sum()
  assert needed.shape == (1, 6 * T)
  for column, (i, c) in enumerate(tokens_of(facts)):
    assert given['tokens'][0, column] == tokens[i, c]
    assert given['positions'][0, column] == c
    response = c >= facts.before[i]
    assert response == (column < needed.sum())
    if response:
      assert targets[0, column] == tokens[i, c + 1]
      np.testing.assert_array_equal(
          listed[0, column], ids[i, c - facts.before[i]])


@pytest.mark.parametrize('plan', ['waves', 'lists'])
def test_a_single_microbatch_without_a_row(plan):
  """It is computed all the same, and changes nothing."""
  batch = update_test._batch()
  batch = batch.replace(mask=np.zeros_like(batch.mask))
  state, metrics = update_test._run(
      batch, real=True, microbatch=update_test.B, buckets=(), plan=plan)
  assert metrics['tokens'] == metrics['real_tokens'] == 0
  assert all(np.isfinite(x) for x in metrics.values())
  jax.tree.map(np.testing.assert_array_equal, state.params,
               update_test._params())
