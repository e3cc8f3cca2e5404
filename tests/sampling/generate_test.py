"""The request queue against one request at a time, and its invariants."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig, RopeScaling
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling.generate import SamplerConfig
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.types import Prompts, Requests
from tests.reference import sampler as reference

_SIZES = dict(vocab_size=13, width=12, layers=3, heads=4, kv_heads=2,
              head_dim=6, mlp_width=20)
_FAMILIES = {
    'qwen2': ModelConfig(**_SIZES, qkv_bias=True),
    'qwen3': ModelConfig(**_SIZES, qk_norm=True, tie_embeddings=False),
    'llama3': ModelConfig(
        **_SIZES, rope_theta=100.0, tie_embeddings=False,
        rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8)),
    'gemma2': ModelConfig(
        **_SIZES, activation='gelu_tanh', norm_plus_one=True, post_norms=True,
        scale_embeddings=True, attention_softcap=2.0, logit_softcap=3.0,
        window=4, query_scale=0.3)}
_FILTERS = dict(temperature=0.7, top_k=10, top_p=0.9, min_p=0.1)
_STOP = (3, 5)
_T = 9
_KEY = jax.random.key(11)


def _params(cfg, seed=0):
  """Large random weights, so that every part of the model matters."""
  params = transformer.init(jax.random.key(seed), cfg)
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
  return jax.tree.unflatten(tree, [
      2 * x + 0.3 * jax.random.normal(k, x.shape)
      for x, k in zip(leaves, keys)])


def _prompts(vocab=13):
  """Five prompts of 1 to 6 tokens, and filler between them."""
  rng = np.random.default_rng(4)
  return Prompts(
      tokens=rng.integers(0, vocab, (6, 6)).astype(np.int32),
      length=np.array([6, 1, 0, 3, 5, 2], np.int32),
      problem_id=np.array([70, 8, 0, 912, 33, 5], np.int32))


def _requests(n=16):
  rng = np.random.default_rng(5)
  return Requests(
      prompt=rng.choice([0, 1, 3, 4, 5], n).astype(np.int32),
      sample=np.arange(n, dtype=np.int32),
      budget=np.array([1, _T, *rng.integers(1, _T + 1, n - 2)], np.int32))


def _jitted(cfg, **options):
  sampler = SamplerConfig(
      **{**dict(slots=5, max_response=_T, stop_ids=_STOP), **options})
  return jax.jit(functools.partial(
      generate_lib.generate, cfg=cfg, sampler=sampler))


def _rows(rollouts, i):
  n = int(rollouts.length[i])
  return [np.asarray(x[i, :n]) for x in (
      rollouts.tokens, rollouts.logprobs, rollouts.entropy)]


@pytest.mark.parametrize('family', _FAMILIES)
@pytest.mark.parametrize('options', [
    dict(slots=5), dict(slots=3, chunk=2, steps_per_refill=3),
    dict(slots=4, unroll=True)], ids=str)
def test_equals_one_request_at_a_time(family, options):
  cfg = _FAMILIES[family]
  params, prompts, requests = _params(cfg), _prompts(), _requests()
  run = _jitted(cfg, **options)
  filters = [{}, _FILTERS] if options == dict(slots=5) else [_FILTERS]
  for values in filters:
    rollouts, _ = run(
        params, prompts, requests, 16, _KEY, SamplingParams(**values), 3)
    expected = _expected(family, tuple(values.items()))
    for i, (tokens, logprobs, entropy) in enumerate(expected):
      got = _rows(rollouts, i)
      np.testing.assert_array_equal(got[0], tokens)
      np.testing.assert_allclose(got[1], logprobs, atol=1e-5)
      np.testing.assert_allclose(got[2], entropy, atol=1e-5)
      stopped = tokens[-1] in _STOP
      assert bool(rollouts.truncated[i]) == (not stopped)
      assert stopped or len(tokens) == requests.budget[i]


@functools.cache
def _expected(family, filters):
  cfg = _FAMILIES[family]
  return reference.generate(
      _params(cfg), _prompts(), _requests(), 16, _KEY, dict(filters), cfg,
      max_response=_T, stop_ids=_STOP)


def test_logprobs_are_those_of_a_teacher_forced_forward():
  cfg = _FAMILIES['gemma2']
  params, prompts, requests = _params(cfg), _prompts(), _requests()
  run = _jitted(cfg)
  one_by_one = [{name: value} for name, value in _FILTERS.items()]
  for values in [*one_by_one, dict(top_k=10, min_p=0.1), dict(temperature=0)]:
    rollouts, _ = run(
        params, prompts, requests, 16, _KEY, SamplingParams(**values), 3)
    for i in range(16):
      tokens, logprobs, entropy = _rows(rollouts, i)
      p = requests.prompt[i]
      logits = reference.teacher_forced(
          params, prompts.tokens[p, :prompts.length[p]], tokens, 6 + _T, cfg)
      for t, row in enumerate(logits):
        tempered, probs = reference.filtered(row, **values)
        np.testing.assert_allclose(
            logprobs[t], np.log(probs[tokens[t]]), atol=1e-5)
        with np.errstate(divide='ignore', invalid='ignore'):
          np.testing.assert_allclose(
              entropy[t], -np.nansum(tempered * np.log(tempered)), atol=1e-5)


def test_a_request_keeps_its_tokens_whatever_surrounds_it():
  cfg = _FAMILIES['qwen3']
  params, prompts, requests = _params(cfg), _prompts(), _requests()
  sampling = SamplingParams(temperature=1.5)
  args = (_KEY, sampling, 0)
  base, _ = _jitted(cfg, stop_ids=())(params, prompts, requests, 16, *args)
  for options in (dict(slots=1), dict(slots=7, steps_per_refill=4),
                  dict(slots=16, chunk=4), dict(slots=20, unroll=True)):
    other, _ = _jitted(cfg, stop_ids=(), **options)(
        params, prompts, requests, 16, *args)
    np.testing.assert_array_equal(other.tokens, base.tokens)
    np.testing.assert_allclose(other.logprobs, base.logprobs, atol=1e-5)
  # Another order, among other requests, a smaller budget.
  some = np.array([9, 4, 15, 1, 4, 12])
  run = _jitted(cfg, stop_ids=(), slots=2)
  other, _ = run(
      params, prompts, jax.tree.map(lambda x: x[some], requests), 6, *args)
  np.testing.assert_array_equal(other.tokens, np.asarray(base.tokens)[some])
  short = requests.replace(budget=np.minimum(requests.budget, 4))
  other, _ = run(
      params, prompts, jax.tree.map(lambda x: x[some], short), 6, *args)
  np.testing.assert_array_equal(
      other.tokens[:, :4], np.asarray(base.tokens)[some, :4])


def _constant_model(probs):
  """A model whose next-token distribution is `probs` everywhere."""
  v = len(probs)
  cfg = ModelConfig(vocab_size=v, width=8, layers=1, heads=1, kv_heads=1,
                    head_dim=8, mlp_width=4, tie_embeddings=False)
  params = jax.tree.map(jnp.zeros_like, transformer.init(_KEY, cfg))
  # The hidden state is all ones, so a row's mean is its logit.
  params.update(
      embed=jnp.ones((v, 8)), norm=jnp.ones(8),
      unembed=jnp.tile(jnp.log(jnp.asarray(probs))[:, None] / 8, 8))
  return params, cfg


def _samples(n, budget, prompts=1):
  """n samples of each of `prompts` prompts of one token."""
  i = np.arange(prompts, dtype=np.int32)
  return (
      Prompts(np.zeros((prompts, 1), np.int32), np.ones(prompts, np.int32), i),
      Requests(i.repeat(n), np.tile(np.arange(n, dtype=np.int32), prompts),
               np.full(n * prompts, budget, np.int32)))


@pytest.mark.parametrize('options', [{}, dict(top_k=4, temperature=2.0)],
                         ids=str)
def test_draws_pass_a_chi_square_test(options):
  probs = np.array([0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.03, 0.015, 0.005])
  params, cfg = _constant_model(probs)
  run = jax.jit(functools.partial(generate_lib.generate, cfg=cfg, sampler=(
      SamplerConfig(slots=250, max_response=100))))
  rollouts, _ = run(
      params, *_samples(1000, 100), 1000, _KEY, SamplingParams(**options), 0)
  _, expected = reference.filtered(np.log(probs), **options)
  counts = np.bincount(np.ravel(rollouts.tokens), minlength=len(probs))
  assert counts.sum() == 100_000
  assert (counts[expected == 0] == 0).all()
  seen = expected > 0
  assert stats.chisquare(counts[seen], 1e5 * expected[seen]).pvalue > 1e-3
  # And successive tokens are independent of each other.
  tokens = np.asarray(rollouts.tokens)
  table = np.zeros((len(probs),) * 2)
  np.add.at(table, (tokens[:, :-1].ravel(), tokens[:, 1:].ravel()), 1)
  table = table[seen][:, seen]
  assert stats.chi2_contingency(table).pvalue > 1e-3


def test_no_two_samples_problems_or_steps_share_noise():
  params, cfg = _constant_model(np.full(50, 0.02))
  run = jax.jit(functools.partial(generate_lib.generate, cfg=cfg, sampler=(
      SamplerConfig(slots=8, max_response=20))))
  prompts, requests = _samples(4, 20, prompts=5)
  steps = [
      np.asarray(run(params, prompts, requests, 20,
                     jax.random.fold_in(jax.random.key(0), step),
                     SamplingParams(), step)[0].tokens)
      for step in (0, 1, 2, 1)]
  np.testing.assert_array_equal(steps[1], steps[3])
  rows = np.concatenate(steps[:3])
  # Two rows of 20 uniform draws of 50 agree at .4 positions on average; 9
  # agreements by chance in any of 1770 pairs have probability below 1e-5.
  agree = (rows[:, None] == rows[None]).sum(-1) - 20 * np.eye(60)
  assert agree.max() < 9
  # Nor does a row repeat another's noise some tokens later.
  shifted = (rows[:, None, 1:] == rows[None, :, :-1]).sum(-1)
  assert shifted.max() < 9


def test_stop_at_position_0_and_budget_1():
  always_5 = np.full(13, 1e-9)
  always_5[5] = 1.0
  params, cfg = _constant_model(always_5)
  prompts, requests = _samples(7, 4)
  requests.budget[:] = [4, 1, 4, 2, 3, 1, 4]
  stopped, _ = _jitted(cfg, slots=3)(
      params, prompts, requests, 7, _KEY, SamplingParams(), 0)
  np.testing.assert_array_equal(stopped.length, [1] * 7)
  np.testing.assert_array_equal(stopped.tokens, [[5] + [0] * 8] * 7)
  np.testing.assert_allclose(stopped.logprobs, 0, atol=1e-6)
  assert not stopped.truncated.any()
  cut, stats_ = _jitted(cfg, slots=3, stop_ids=())(
      params, prompts, requests, 7, _KEY, SamplingParams(), 0)
  np.testing.assert_array_equal(cut.length, requests.budget)
  np.testing.assert_array_equal(
      cut.tokens, 5 * (np.arange(_T) < requests.budget[:, None]))
  assert cut.truncated.all()
  assert stats_.busy == requests.budget.sum()


def test_only_the_first_count_requests_are_served():
  cfg = _FAMILIES['qwen3']
  params, prompts, requests = _params(cfg), _prompts(), _requests()
  run = _jitted(cfg)
  args = (_KEY, SamplingParams(), 12)
  full, _ = run(params, prompts, requests, 16, *args)
  for count in (0, 1, 7):
    some, stats_ = run(params, prompts, requests, count, *args)
    served = np.arange(16) < count
    np.testing.assert_array_equal(
        some.length, np.where(served, full.length, 0))
    for name in ('tokens', 'logprobs', 'entropy'):
      np.testing.assert_array_equal(
          getattr(some, name)[:count], getattr(full, name)[:count])
      assert not np.any(getattr(some, name)[count:])
    assert not np.any(some.truncated[count:])
    assert stats_.busy == np.sum(some.length)
    if not count:
      assert stats_.steps == 0
  np.testing.assert_array_equal(full.policy_step, [12] * 16)
  np.testing.assert_array_equal(full.sample, requests.sample)
  np.testing.assert_array_equal(
      full.problem_id, prompts.problem_id[requests.prompt])
  past = np.arange(_T) >= np.asarray(full.length)[:, None]
  assert not np.any(np.asarray(full.tokens)[past])
  assert not np.any(np.asarray(full.logprobs)[past])


def test_changing_values_never_recompiles():
  cfg = _FAMILIES['qwen3']
  params, prompts, requests = _params(cfg), _prompts(), _requests()
  run = _jitted(cfg)
  for count, values in ((16, {}), (3, _FILTERS), (9, dict(temperature=0)),
                        (0, dict(top_k=2))):
    run(params, prompts, requests, count, jax.random.key(count),
        SamplingParams(**values), count)
    requests = requests.replace(budget=np.roll(requests.budget, 1))
  assert run._cache_size() == 1


def test_slots_are_used():
  params, cfg = _constant_model(np.full(13, 1 / 13))
  prompts, requests = _samples(256, 96)
  requests.budget[:] = np.minimum(
      np.random.default_rng(0).geometric(1 / 26, 256), 96)
  _, stats_ = _jitted(cfg, slots=16, max_response=96, stop_ids=())(
      params, prompts, requests, 256, _KEY, SamplingParams(), 0)
  assert stats_.busy == requests.budget.sum()
  assert stats_.busy / (stats_.steps * 16) >= 0.75


def test_top_logprobs_are_of_the_behaviour_distribution():
  cfg = _FAMILIES['llama3']
  params, prompts, requests = _params(cfg), _prompts(), _requests()
  values = dict(top_k=4, temperature=0.7)
  rollouts, _ = _jitted(cfg, top_logprobs=6)(
      params, prompts, requests, 16, _KEY, SamplingParams(**values), 0)
  for i in range(16):
    tokens = _rows(rollouts, i)[0]
    p = requests.prompt[i]
    logits = reference.teacher_forced(
        params, prompts.tokens[p, :prompts.length[p]], tokens, 6 + _T, cfg)
    for t, row in enumerate(logits):
      _, probs = reference.filtered(row, **values)
      best = np.argsort(-probs)[:4]
      np.testing.assert_array_equal(rollouts.top_ids[i, t, :4], best)
      np.testing.assert_allclose(
          rollouts.top_logprobs[i, t, :4], np.log(probs[best]), atol=1e-5)
      assert (rollouts.top_logprobs[i, t, 4:] == -np.inf).all()
    assert not np.any(rollouts.top_ids[i, len(tokens):])


@pytest.mark.parametrize('chunk', [None, 2])
def test_bfloat16_keeps_probabilities_in_float32(chunk):
  cfg = dataclasses.replace(_FAMILIES['gemma2'], dtype='bfloat16')
  params, prompts, requests = _params(cfg), _prompts(), _requests()
  rollouts, _ = _jitted(cfg, chunk=chunk)(
      params, prompts, requests, 16, _KEY, SamplingParams(), 0)
  assert rollouts.logprobs.dtype == rollouts.entropy.dtype == jnp.float32
  for i in range(16):
    tokens, logprobs, _ = _rows(rollouts, i)
    p = requests.prompt[i]
    logits = reference.teacher_forced(
        params, prompts.tokens[p, :prompts.length[p]], tokens, 6 + _T, cfg)
    expected = [np.log(reference.softmax(row)[token])
                for row, token in zip(logits, tokens)]
    # 8 bits of mantissa through three layers.
    np.testing.assert_allclose(logprobs, expected, atol=0.2)


def test_config_errors_name_the_field():
  for field in ('slots', 'max_response', 'steps_per_refill', 'chunk'):
    with pytest.raises(ValueError, match=f'{field}=0'):
      SamplerConfig(**{**dict(slots=1, max_response=1), field: 0})


@pytest.mark.parametrize('options', [{}, dict(unroll=True), dict(chunk=5)],
                         ids=str)
def test_the_cache_is_updated_in_place(options):
  cfg = _FAMILIES['gemma2']
  text = _jitted(cfg, slots=7, **options).lower(
      _params(cfg), _prompts(), _requests(), 16, _KEY, SamplingParams(), 0
  ).compile().as_text()
  columns = 20 if 'chunk' in options else 15
  layers = 1 if 'unroll' in options else 3
  cache = f'f32[{layers},7,{columns},2,6]'
  assert cache in text
  # Only the entry computation, outside the loops, may copy a whole cache.
  loops = [part for part in text.split('\n\n') if 'ENTRY' not in part]
  copies = [line for part in loops for line in part.splitlines()
            if f'= {cache}' in line and ' copy(' in line]
  assert not copies
