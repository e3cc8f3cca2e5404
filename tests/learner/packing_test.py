"""Tests of plans against what any plan must be, and of how full lists are."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl_llm.learner import packing
from tests.ops.ragged_test import facts_of, L, T


def lists_of(plan, length):
  """Returns for each list (m, f, its rows, slice of their places)."""
  for m in range(int(plan.count)):
    for f in range(plan.order.shape[0]):
      first, number = plan.first[m, f], plan.rows[m, f]
      here = slice(first, first + number)
      rows = plan.order[f, here]
      assert (rows < len(length)).all()
      yield m, f, rows, here


def _distinct(prompt, before, length):
  """Counts the tokens of responses, and of each of their prompts once."""
  return length.sum() + sum({
      p: b for p, b, n in zip(prompt, before, length) if n}.values())


def check(plan, prompt, before, length):
  """Asserts that a plan is one of these rows."""
  sizes, seen, real = plan.sizes, [], 0
  firm = getattr(sizes.layout, 'firm', None)
  size, back, width = dataclasses.astuple(sizes.layout) if (
      sizes.chunks) else (0, 0, 0)
  for m, f, rows, here in lists_of(plan, length):
    assert len(rows) <= sizes.places
    if firm is not None:
      assert (length[rows][firm:] <= sizes.layout.short).all()
    # A slice of R rows from the first one exists.
    assert here.start + sizes.places <= plan.order.shape[1]
    owner = np.full(sizes.columns, -1)
    own = {}
    for row, start, of_prompt, is_owner in zip(
        rows, plan.response[f, here], plan.prompt[f, here],
        plan.owner[f, here], strict=True):
      tokens = slice(start, start + length[row])
      assert length[row] and (owner[tokens] == -1).all()
      assert tokens.stop <= sizes.columns
      owner[tokens] = 0
      # The first row with a prompt owns it, and the others find it there.
      assert is_owner == (prompt[row] not in own)
      assert own.setdefault(prompt[row], of_prompt) == of_prompt
      if is_owner:
        tokens = slice(of_prompt, of_prompt + before[row])
        assert (owner[tokens] == -1).all() and tokens.stop <= sizes.columns
        owner[tokens] = 1
      # Chunks attend to all of the response and to its prompt.
      for chunk in range(start // size, -(
          -(start + length[row]) // size)) if size else ():
        assert start >= chunk * size - back
        reach = plan.reach[m, f, chunk]
        assert not before[row] or reach <= of_prompt
        assert of_prompt + before[row] <= reach + width or (
            not before[row])
    responses = np.flatnonzero(owner == 0)
    assert max(responses, default=-1) < packing.head_columns(
        sizes, max(length, default=0))
    prompts = np.flatnonzero(owner == 1)
    if len(prompts):
      assert responses.max() < prompts.min()
    for chunk in range(sizes.chunks):
      first = chunk * size
      if not len(responses) or first > responses.max():  # prompts alone
        reach = plan.reach[m, f, chunk]
        assert reach <= max(first - back - width, 0)
        assert reach + width >= first - back
        assert back + width >= L - 1
    seen += rows.tolist()
    real += (owner >= 0).sum()
  assert sorted(seen) == np.flatnonzero(length).tolist()
  lists = max(int(plan.count) * plan.order.shape[0], 1)
  shares = plan.shares
  np.testing.assert_allclose(
      shares['real_tokens'], real / lists / sizes.columns, rtol=1e-6)
  longest = max(before[length > 0] + length[length > 0], default=1)
  np.testing.assert_allclose(
      shares['real_tokens_limit'],
      min(1, _distinct(prompt, before, length) / plan.order.shape[0] / longest),
      rtol=1e-6)
  assert plan.count <= (1 if sizes.single else plan.first.shape[0])


@pytest.mark.parametrize('chunks', [False, True])
@pytest.mark.parametrize('tokens, shards', [(1, 1), (25, 2), (60, 3), (400, 1)])
@pytest.mark.parametrize('groups', [4, 16])  # prompts come into reach, or not
@pytest.mark.parametrize('seed', range(8))
def test_every_row_has_one_place(seed, groups, tokens, shards, chunks):
  rows = facts_of(seed, 24, groups)
  sizes = packing.choose(
      tokens=tokens, max_prompt=L, max_response=T, samples=4,
      rows=-(-24 // shards), chunks=chunks)
  plan = packing.plan(*rows, shards=shards, sizes=sizes)
  check(plan, *rows)
  # All plans of a size have the same shapes.
  like = packing.nothing(plan.sizes, rows=24, shards=shards)
  assert jax.tree.map(np.shape, plan) == jax.tree.map(np.shape, like)


@pytest.mark.parametrize('prompt, response, samples, tokens', [
    (20, 10, 4, 512), (200, 100, 4, 8192), (400, 250, 1, 16384)])
def test_the_head_has_all_columns_of_full_responses(
    prompt, response, samples, tokens):
  """Prompts that are out of reach leave gaps before the next responses."""
  sizes = packing.choose(
      tokens=tokens, max_prompt=prompt + 10, max_response=response,
      samples=samples, rows=16, chunks=True)
  rows = np.arange(16) // samples, np.full(16, prompt), np.full(16, response)
  plan = packing.plan(*rows, shards=1, sizes=sizes)
  end = plan.response[0].max() + response
  assert 16 * response < end <= packing.head_columns(plan.sizes, response)


def test_further_rows_are_short():
  """A long one would fit into the first list, behind four others."""
  sizes = packing.Sizes(40, 6, layout=packing.RowLayout(4, 6))
  prompt, before = np.array([0, 0, 0, 0, 1, 1]), np.zeros(6, int)
  length = np.array([10, 1, 1, 1, 9, 6])
  plan = packing.plan(prompt, before, length, shards=1, sizes=[sizes])
  check(plan, prompt, before, length)
  assert plan.rows[:2, 0].tolist() == [5, 1]


def test_the_limit_of_real_tokens_counts_shards_without_rows():
  sizes = packing.choose(
      tokens=60, max_prompt=L, max_response=T, samples=1, rows=1, chunks=False)
  rows = np.arange(4), np.full(4, 2), np.array([5, 0, 0, 2])
  plan = packing.plan(*rows, shards=4, sizes=sizes)
  check(plan, *rows)
  assert plan.shares['real_tokens_limit'] == pytest.approx((7 + 4) / 4 / 7)


def test_plans_have_a_size_that_was_compiled():
  """Whole groups fit into one microbatch, wherever a shard's rows begin."""
  rng, misaligned = np.random.default_rng(0), 0
  for _ in range(800):
    samples, shards, rows = map(int, rng.integers(1, (9, 9, 25)))
    count, full = rows * shards, rng.random()
    if count % samples:
      continue
    misaligned += rows % samples > 0
    prompt = np.repeat(np.arange(count // samples), samples)
    before = np.where(
        rng.random(count // samples) < full, L - 1, rng.integers(L))[prompt]
    length = np.where(rng.random(count) < full, T, rng.integers(T + 1))
    for chunks in (False, True):
      sizes = packing.choose(
          tokens=10 ** 6, max_prompt=L, max_response=T, samples=samples,
          rows=rows, chunks=chunks)
      plan = packing.plan(prompt, before, length, shards=shards, sizes=sizes)
      assert plan.sizes in sizes and plan.sizes.single
  assert misaligned > 50


@pytest.mark.parametrize('last, column', [(0, 2), (1, 4)])
def test_a_prompt_out_of_reach_begins_a_chunk(last, column):
  """Three responses of a token; their prompts have 10 columns, or 11."""
  sizes = packing.Sizes(40, 3, layout=packing.ChunkLayout(4, 4, 10))
  plan = packing.plan(
      np.arange(3), np.array([5, 5, last]), np.ones(3, int), shards=1,
      sizes=[sizes])
  assert plan.response[0, :3].tolist() == [0, 1, column]


def test_the_cheapest_sizes_are_taken():
  """By hand: 12 rows of 5 tokens with prompts of 4: 9 columns each alone."""
  rows = np.arange(12), np.full(12, 4), np.full(12, 5)

  def taken(*columns, single=()):
    plan = packing.plan(*rows, shards=1, sizes=[
        packing.Sizes(n, 12, n in single) for n in columns])
    return plan.sizes.columns, int(plan.count)

  assert taken(27, 40) == (27, 4)  # 108 columns; 40 would be 3 x 40
  assert taken(36, 108, single=(108,)) == (108, 1)  # the same, fewer passes
  assert taken(20, 36) == (36, 3)  # 20 holds 2: 6 x 20
  assert taken(90, single=(90,)) == (90, 2)  # does not fit into one


def lengths_of(groups, samples, mean):
  """Returns rows of groups, of log-normal lengths up to 1024."""
  rng = np.random.default_rng(0)
  spread = rng.normal(0, .3, (groups, 1)) + rng.normal(0, .5, (groups, samples))
  length = np.clip(mean * np.exp(spread), 1, 1024).astype(int).ravel()
  before = np.clip(rng.normal(150, 50, groups), 0, 511).astype(int)
  prompt = np.repeat(np.arange(groups), samples)
  return prompt, before[prompt], length


@pytest.mark.parametrize('shards, each, mean, least', [
    (8, 4, 400, .9), (8, 8, 400, .85), (32, 4, 400, .85), (16, 8, 700, .9),
    # A longest row is longer than two mean ones.
    (32, 2, 400, .75)])
def test_most_columns_are_real(shards, each, mean, least):
  rows = lengths_of(32, 16, mean)
  sizes = packing.choose(
      tokens=each * (1024 + 32), max_prompt=512, max_response=1024, samples=16,
      rows=512 // shards, chunks=False)
  plan = packing.plan(*rows, shards=shards, sizes=sizes)
  real = plan.shares['real_tokens']
  assert real >= least, (real, plan.count, plan.sizes)


def test_most_columns_of_chunks_are_real():
  """Lengths as in the main job, and geometric ones, over some updates."""
  prompt = np.repeat(np.arange(32), 8)
  normal = lambda rng: np.clip(rng.normal(16, 4, 256), 5, 23)
  geometric = lambda rng: np.minimum(rng.geometric(1 / 32, 256), 64)
  for draw, most, before in (normal, 23, 12), (geometric, 64, 7):
    sizes = packing.choose(
        tokens=512, max_prompt=before + 1, max_response=most, samples=8,
        rows=128, chunks=True)
    real = []
    for seed in range(10):
      rng = np.random.default_rng(seed)
      trained = rng.random(32) < rng.uniform(0.4, 1)  # groups with a signal
      real.append(packing.plan(
          prompt, np.full(256, before),
          draw(rng).astype(int) * trained[prompt], shards=2,
          sizes=sizes).shares['real_tokens'])
    assert np.mean(real) >= .9 and min(real) >= .75, real
