"""Tests of prefixes that slots share, against a copy for each slot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.sampling import kv_cache, prefixes
from tests.sampling import generate_test as plain


@pytest.mark.parametrize('family, values, options', [
    ('qwen3', (), {}),
    ('gemma2', tuple(plain._FILTERS.items()), dict(
        slots=3, chunk=4, unroll=True))], ids=str)
def test_sharing_changes_no_response_and_no_use_of_the_slots(
    family, values, options):
  """Five prompts of 1 to 6 tokens, whose requests are in random order."""
  jitted = plain._jitted(plain._FAMILIES[family], share_prompts=True, **options)
  for count in (plain._R, 7):
    copied, used = plain._run(family, values, count, **options)
    shared, stats = plain._run(
        family, values, count, share_prompts=True, **options)
    for name in ('tokens', 'length', 'truncated'):
      np.testing.assert_array_equal(
          getattr(shared, name), getattr(copied, name), name)
    # The sum over the columns has another order.
    for name in ('logprobs', 'entropy'):
      plain._close(getattr(shared, name), getattr(copied, name), family)
    assert (stats.steps, stats.busy) == (used.steps, used.busy)
  assert jitted._cache_size() == 1


@pytest.mark.parametrize('family, options', [
    ('gemma2', dict(slots=3, chunk=4, unroll=True)),
    ('qwen3', dict(slots=4, prefill_prompts=2))], ids=str)
def test_log_probs_are_those_of_a_full_forward(family, options):
  rollouts, _ = plain._run(family, share_prompts=True, **options)
  expected = plain._one_at_a_time(family, ())
  for i, (tokens, logprobs, entropy) in enumerate(expected):
    got = plain._row(rollouts, i)
    np.testing.assert_array_equal(got[0], tokens)
    np.testing.assert_allclose(got[1], logprobs, rtol=0, atol=1e-5)
    plain._close(got[2], entropy, family)


_COLUMNS = 3


def _cache(prompts):
  """Makes keys and values that are all the number of their prompt."""
  full = lambda *shape: jnp.broadcast_to(
      jnp.asarray(prompts, jnp.float32).reshape(1, -1, 1, 1, 1),
      (2, len(prompts), 1, *shape))
  return kv_cache.Cache(full(2, _COLUMNS), full(_COLUMNS, 2))


@pytest.mark.parametrize('slots, prompts', [(4, 9), (6, 3), (1, 2), (3, 3)])
def test_a_seat_keeps_its_prompt_while_a_slot_uses_it(slots, prompts):
  """Slots end at random, and the prompts of a prefill change each time."""
  rng = np.random.default_rng(slots)
  take = jax.jit(prefixes.take)
  pool = prefixes.PrefixPool(
      _cache([-1] * min(slots, prompts)),
      jnp.full((min(slots, prompts),), -1), jnp.full((slots,), min(
          slots, prompts)))
  want, copies = np.full(slots, -1), 0
  for _ in range(40):
    ended = rng.random(slots) < 0.4
    pool = prefixes.leave(pool, ended)
    # Adjacent requests, as in a queue, of prompts that were prefilled now.
    source = rng.permutation(prompts)
    for slot in np.flatnonzero(ended):
      row = rng.integers(prompts)
      here = source[row] in np.asarray(pool.prompt)
      want[slot] = source[row] if rng.random() < 0.9 else -1
      before = pool
      pool = take(pool, slot, want[slot], _cache(source), row)
      changed = np.any(before.caches.k != pool.caches.k, (0, 2, 3, 4))
      assert changed.sum() == (want[slot] >= 0 and not here)
      copies += changed.sum()
    for slot, prompt in enumerate(want):
      seat = int(pool.seat[slot])
      if prompt < 0:
        assert seat == len(pool.prompt)
        continue
      assert pool.prompt[seat] == prompt
      for x in (pool.caches.k, pool.caches.v):
        assert np.all(x[:, seat] == prompt)
    held = np.asarray(pool.prompt)
    assert len({*held[held >= 0]}) == np.sum(held >= 0)
  assert copies >= min(prompts, slots)


def test_only_tiles_in_use_are_read():
  pool = prefixes.PrefixPool(None, jnp.array([7, 8, -1, 9]), jnp.array(
      [3, 0, 3, 1, 4]))
  seen = prefixes.view(
      pool, jnp.array([5, 2, 5, 6, 6]), jnp.zeros(5, jnp.int32),
      jnp.array([True, True, True, False, True]), columns=6, chunk=2)
  # Seat 3 has 3 tiles, seat 0 one; slot 3 has ended, and slot 4 has no seat.
  assert seen.used == 4
  assert {*seen.tiles[:4].tolist()} == {0, 9, 10, 11}
  assert {*seen.tiles.tolist()} == {*range(12)}


def test_tiles_that_no_slot_sees_are_not_read():
  """Their keys and values may be anything."""
  cfg = plain._FAMILIES['gemma2']
  seats = kv_cache.Cache(
      jnp.full((2, 2, 6, 4), jnp.nan).at[1, ..., :2].set(1),
      jnp.full((2, 2, 4, 6), jnp.nan).at[1, :, :2].set(2))
  pool = prefixes.PrefixPool(seats, jnp.array([0, 1]), jnp.array([1, 0]))
  alive = jnp.array([True, False])
  seen = prefixes.view(
      pool, jnp.array([2, 4]), jnp.zeros(2, jnp.int32), alive, columns=4,
      chunk=2)
  sums = prefixes.attend(
      seats, None, jnp.ones((2, 4, 6)), 4, seen=seen, cfg=cfg)
  np.testing.assert_allclose(sums.total[0], 2)
  np.testing.assert_allclose(sums.out[0], 4)
  assert np.all(sums.top[1] < -1e29)  # Vanishes beside the slot's own columns.


@pytest.mark.parametrize('choice, platform, changes, want', [
    (None, 'tpu', {}, True), (None, 'gpu', {}, False), (None, 'cpu', {}, False),
    (None, 'gpu', dict(prompts=4), True),
    (None, 'gpu', dict(slots=512, prompts=32), False),
    (True, 'cpu', {}, True), (False, 'tpu', {}, False),
    (None, 'tpu', dict(samples=2, prompts=64), False),
    (None, 'tpu', dict(prompts=128, chunk=None), False),
    (None, 'tpu', dict(slots=8, prompts=2), True),
    (None, 'tpu', dict(slots=1, prompts=1), False)], ids=str)
def test_where_sharing_is_faster(choice, platform, changes, want):
  sizes = {**dict(slots=64, prompts=16, samples=16, chunk=256), **changes}
  assert prefixes.shared(choice, platform, **sizes) == want
