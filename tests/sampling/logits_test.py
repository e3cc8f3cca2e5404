"""Tests of truncation against transformers and a reference; of drawing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from jaxrl_llm.sampling import logits as logits_lib
from jaxrl_llm.sampling import vocabulary
from jaxrl_llm.sampling.logits import SamplingParams
from tests.helpers.tolerance import FUNCTION, rounding, typical
from tests.reference import sampler as reference

_COMBINATIONS = [
    {}, dict(temperature=0.7), dict(top_k=10), dict(top_p=0.9),
    dict(min_p=0.1), dict(temperature=0.7, top_k=10),
    dict(temperature=1.3, top_p=0.5), dict(top_k=5, top_p=0.9),
    dict(top_k=7, min_p=0.05), dict(top_p=0.8, min_p=0.2), dict(top_k=1),
    dict(top_k=99), dict(temperature=0.7, top_k=10, top_p=0.9, min_p=0.1)]

_process = jax.jit(logits_lib.process)


def _transformers_logprobs(logits, temperature=1.0, top_k=0, top_p=1.0,
                           min_p=0.0):
  """Applies transformers' filters in the order of its `generate`."""
  filters = [transformers.TemperatureLogitsWarper(float(temperature))]
  if top_k:
    filters.append(transformers.TopKLogitsWarper(top_k))
  if top_p < 1:
    filters.append(transformers.TopPLogitsWarper(top_p))
  if min_p:
    filters.append(transformers.MinPLogitsWarper(min_p))
  scores = torch.tensor(logits, dtype=torch.float64)
  for f in filters:
    scores = f(None, scores)
  return torch.log_softmax(scores, -1).numpy()


@pytest.mark.parametrize('options', _COMBINATIONS, ids=str)
def test_truncation_is_that_of_transformers(options):
  logits = 2 * np.random.default_rng(0).standard_normal((40, 23))
  got = _process(jnp.asarray(logits, jnp.float32), SamplingParams(**options))
  # A sum over 23, exp and log; and 4 roundings at the size of log-probs: of the
  # logits, in their division and in two differences.
  temperature = options.get('temperature', 1.0)
  close = functools.partial(
      np.testing.assert_allclose, rtol=0,
      atol=rounding(23, 2 * FUNCTION) + rounding(
          4, magnitude=np.ptp(logits) / temperature))
  close(got.behaviour, _transformers_logprobs(logits, **options))
  close(got.tempered, _transformers_logprobs(logits, temperature))


@pytest.mark.parametrize('options', _COMBINATIONS, ids=str)
def test_truncation_with_ties_is_that_of_the_twin(options):
  # Few distinct values, an eighth apart: many ties, exact in float32.
  logits = np.random.default_rng(1).integers(-8, 8, (40, 23)) / 8
  got = _process(jnp.asarray(logits, jnp.float32), SamplingParams(**options))
  for row, behaviour in zip(logits, np.asarray(got.behaviour)):
    _, probs = reference.filtered(row, **options)
    # A sum over 23, exp twice and log.
    np.testing.assert_allclose(
        np.exp(behaviour), probs, rtol=0, atol=rounding(23, 3 * FUNCTION))


def test_ties_at_the_threshold_are_kept():
  logits = jnp.log(jnp.array([0.4, 0.2, 0.2, 0.1, 0.1]))
  kept = lambda **options: int(np.isfinite(
      _process(logits, SamplingParams(**options)).behaviour).sum())
  assert kept(top_k=2) == 3
  assert kept(top_p=0.5) == 3  # .4 + .2 passes .5; the other .2 ties.
  assert kept(top_k=4) == 5
  assert kept(min_p=0.45) == 3


@pytest.mark.parametrize('temperature', [0.1, 0.7, 1.3])
def test_the_likeliest_is_always_kept(temperature):
  logits = 5 * np.random.default_rng(2).standard_normal((500, 37))
  for options in (dict(min_p=1.0), dict(top_p=1e-6), dict(top_k=1)):
    got = _process(
        jnp.asarray(logits, jnp.float32),
        SamplingParams(temperature=temperature, **options))
    np.testing.assert_allclose(
        got.behaviour,
        np.where(np.arange(37) == logits.argmax(1)[:, None], 0.0, -np.inf),
        atol=rounding(37, FUNCTION))


def test_greedy_is_a_point_mass_on_the_first_maximum():
  logits = jnp.array([[0.0, 3.0, 3.0], [5.0, 1.0, 0.0]])
  for options in ({}, dict(top_k=2, top_p=0.9, min_p=0.1)):
    got = _process(logits, SamplingParams(temperature=0, **options))
    expected = [[-np.inf, 0.0, -np.inf], [0.0, -np.inf, -np.inf]]
    np.testing.assert_array_equal(got.behaviour, expected)
    np.testing.assert_array_equal(logits_lib.entropy(got.tempered), [0.0, 0.0])


def test_entropy_ignores_what_cannot_be_drawn():
  logprobs = jnp.log(jnp.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]))
  np.testing.assert_allclose(
      logits_lib.entropy(logprobs), [np.log(2), 1.5 * np.log(2)],
      rtol=rounding(3, 2 * FUNCTION, 2))  # a sum of 3; log, exp, products


def _sums(vocab):
  """Error of cumulative masses: of blocks, each a sum of sums."""
  return typical(16, max(vocab // 16, 256), 2 * FUNCTION)


def _inverted(probs, u):
  """Returns the entry at which the cumulative sum passes u."""
  return int(np.searchsorted(np.cumsum(probs, dtype=np.float64), u, 'right'))


@pytest.mark.parametrize('vocab', [5, 256, 257, 1000, 4096, 20_011])
def test_draw_inverts_the_cumulative_distribution(vocab):
  rng = np.random.default_rng(vocab)
  logits = 3 * rng.standard_normal((300, vocab))
  logits[:, rng.permutation(vocab)[:vocab // 2]] = -np.inf
  probs = np.exp(logits - logits.max(1, keepdims=True))
  probs /= probs.sum(1, keepdims=True)
  u = rng.random(300).astype(np.float32)
  got = jax.jit(logits_lib.draw)(
      jnp.log(jnp.asarray(probs, jnp.float32)), jnp.asarray(u))
  for token, row, x in zip(got, probs, u):
    # Within rounding: the same entry for a number next to this one.
    near = _sums(vocab)
    assert _inverted(row, x - near) <= token <= _inverted(row, x + near)
    assert row[token] > 0


@pytest.mark.parametrize('masses', [False, True])
def test_frequencies_of_a_large_vocabulary(masses):
  rng = np.random.default_rng(0)
  logits = (3 * rng.standard_normal(3001)).astype(np.float32)
  dist = _process(jnp.asarray(logits)[None], SamplingParams(temperature=0.9))
  probs = np.exp(np.float64(logits) / 0.9)
  probs /= probs.sum()
  # Evenly spaced numbers: a token comes as often as multiples of 1 / n fall
  # into its stretch of [0, 1).
  n, rows = 50_000, 1000
  u = ((np.arange(n) + 0.5) / n).astype(np.float32).reshape(-1, rows)
  known = jnp.tile(dist.masses, (rows, 1)) if masses else None
  draw = jax.jit(lambda u: logits_lib.draw(
      jnp.tile(dist.behaviour, (rows, 1)), u, known))
  counts = np.bincount(
      np.concatenate([draw(x) for x in u]), minlength=len(probs))
  # Both ends of the stretch are rounded.
  assert np.abs(counts - n * probs).max() <= 1 + 2 * n * _sums(3001)


@pytest.mark.parametrize('vocab', [5, 1000])
def test_draw_never_leaves_the_support(vocab):
  largest = np.nextafter(np.float32(1), np.float32(0))
  for u in (0.0, largest):
    for alone in (0, vocab // 2, vocab - 1):
      logprobs = jnp.full((1, vocab), -jnp.inf).at[0, alone].set(0.0)
      token = logits_lib.draw(logprobs, jnp.array([u], jnp.float32))
      assert token == alone


@pytest.mark.parametrize('place', [0, 19])
def test_draw_takes_no_token_that_is_lost_in_the_sum(place):
  """Noise on each side of a block's end, where all begin or end with e^-60."""
  rng = np.random.default_rng(0)
  x = rng.normal(0, 3, (30, 320)).astype(np.float32)
  x[np.arange(30), rng.integers(0, 320, 30)] += 8
  x[:, place::20] = -60
  given = logits_lib.process(jnp.asarray(x), SamplingParams())
  ends = np.cumsum(np.asarray(given.masses, np.float64), -1)[..., None]
  noise = (np.floor(ends * 2 ** 23) + np.arange(-2, 4)).reshape(30, -1)
  noise = np.clip(noise, 0, 2 ** 23 - 1) / 2 ** 23
  noise[:, 0] = 0
  rows = np.repeat(np.arange(30), noise.shape[1])
  token = logits_lib.draw(
      given.behaviour[rows], jnp.asarray(noise.reshape(-1), jnp.float32),
      given.masses[rows])
  assert given.behaviour[rows, token].min() > -40


def test_python_numbers_do_not_recompile():
  # A function of its own: jit's caches are shared between equal ones.
  process = jax.jit(lambda x, sampling: logits_lib.process(x, sampling))
  x = jnp.ones((2, 5))
  for temperature, top_k in ((0, 0), (1, 2), (0.7, np.int32(3))):
    process(x, SamplingParams(temperature=temperature, top_k=top_k))
  assert process._cache_size() == 1


def _split(x, shards):
  """Splits [S, V] into shards: [shards, S, v]."""
  return jnp.moveaxis(x.reshape(len(x), shards, -1), 1, 0)


@pytest.mark.parametrize('values', [
    {}, dict(temperature=0), dict(top_k=50), dict(top_p=0.9, top_k=700),
    dict(min_p=0.02), dict(temperature=0.8, top_k=90, top_p=0.9, min_p=0.01)],
    ids=str)
def test_what_is_drawn_does_not_depend_on_the_shards(values):
  """With `vmap` for a mesh axis, so that the logits are the same bits."""
  rng = np.random.default_rng(7)
  # An eighth apart in one half of the rows, where most logits tie.
  logits = 3 * rng.standard_normal((70, 4096))
  logits[:35] = np.round(logits[:35] * 8) / 8
  logits = jnp.asarray(logits, jnp.float32)
  noise = jnp.asarray(rng.random(70), jnp.float32)
  sampling = SamplingParams(**values)

  def run(x, axis=None):
    dist = logits_lib.process(x, sampling, axis)
    return dist, logits_lib.draw(dist.behaviour, noise, dist.masses, axis)

  whole, tokens = jax.jit(run)(logits)
  assert np.isfinite(whole.behaviour[np.arange(70), tokens]).all()
  np.testing.assert_allclose(
      whole.masses, np.exp(whole.behaviour).reshape(70, 16, -1).sum(-1),
      rtol=0, atol=_sums(4096))
  for shards in (3, 8):
    # 3 does not divide 4096: the last shard's last two tokens can't be drawn.
    x = jnp.pad(logits, ((0, 0), (0, -4096 % shards)),
                constant_values=-jnp.inf)
    parts, drawn = jax.jit(jax.vmap(
        lambda x: run(x, 'tensor'), axis_name='tensor'))(_split(x, shards))
    np.testing.assert_array_equal(drawn, jnp.tile(tokens, (shards, 1)))
    if shards != 3:
      np.testing.assert_allclose(
          parts.masses, jnp.tile(whole.masses, (shards, 1, 1)),
          rtol=_sums(4096))
    for name in ('tempered', 'behaviour'):
      joined = jnp.moveaxis(getattr(parts, name), 0, 1).reshape(70, -1)
      # The log of the sum, subtracted.
      want = np.asarray(getattr(whole, name))
      finite = np.abs(np.ma.masked_invalid(want)).max()
      np.testing.assert_allclose(
          joined[:, :4096], want, rtol=0,
          atol=_sums(4096) + rounding(1, magnitude=finite))


@pytest.mark.parametrize('vocab, shards, count', [
    (256, 1, 1), (257, 1, 16), (4096, 4, 16), (1000, 8, 16), (1000, 2, 16),
    (4095, 1, 16), (4095, 3, 18), (2016, 32, 32)])
def test_blocks_are_stretches_of_the_vocabulary(vocab, shards, count):
  ids = jnp.arange(vocab, dtype=jnp.float32)[None]
  axis = 'tensor' if shards > 1 else None
  blocks = jax.vmap(
      lambda x: vocabulary.blocks(x, axis), axis_name='tensor')(
          _split(ids, shards))
  blocks = np.moveaxis(np.asarray(blocks), 0, 1).reshape(count, -1)
  starts = jax.vmap(
      lambda _: vocabulary.block_start(
          np.arange(count), vocab // shards, axis), axis_name='tensor')(
              np.arange(shards))[0]
  np.testing.assert_array_equal(blocks[:, 0], starts)
  real = blocks[np.isfinite(blocks)]
  np.testing.assert_array_equal(real, np.arange(vocab))
  if vocab % 16 == 0 and shards <= 16 and count > 1:
    np.testing.assert_array_equal(starts, np.arange(16) * (vocab // 16))
