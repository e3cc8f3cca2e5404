"""Tests of the request queue against a reference, and of its invariants."""

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
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.types import Prompts, Requests
from tests.helpers.tolerance import decoder, EPS_16, FUNCTION, rounding, typical
from tests.reference import sampler as reference

_SIZES = dict(vocab_size=13, width=12, layers=2, heads=4, kv_heads=2,
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
        window=4, query_scale=0.3),
    'gemma3': ModelConfig(
        **_SIZES, activation='gelu_tanh', norm_plus_one=True, qk_norm=True,
        post_norms=True, scale_embeddings=True, rope_theta=100.0,
        rope_divisor=3.0, window_rope_theta=10.0, window=4),
    'qwen3_moe': ModelConfig(
        **_SIZES, qk_norm=True, experts=6, experts_per_token=2, expert_width=8,
        dense_layers=(0,))}
_FILTERS = dict(temperature=0.7, top_k=10, top_p=0.9, min_p=0.1)
_STOP = (3, 5)
_T = 9
_R = 16
_KEY = jax.random.key(11)


@functools.cache
def _params(cfg):
  """Makes random weights, so large that every part of the model matters."""
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(functools.partial(transformer.init, cfg=cfg), _KEY)
  return jax.tree.map(
      lambda x: jnp.asarray(0.4 * rng.standard_normal(x.shape), x.dtype),
      shapes)


def _prompts():
  """Makes five prompts of 1 to 6 tokens, and a filler row among them."""
  rng = np.random.default_rng(4)
  return Prompts(
      tokens=rng.integers(0, 13, (6, 6)).astype(np.int32),
      length=np.array([6, 1, 0, 3, 5, 2], np.int32),
      problem_id=np.array([70, 8, 0, 912, 33, 5], np.int32))


def _requests():
  rng = np.random.default_rng(5)
  return Requests(
      prompt=rng.choice([0, 1, 3, 4, 5], _R).astype(np.int32),
      sample=np.arange(_R, dtype=np.int32),
      budget=np.array([1, _T, *rng.integers(2, _T + 1, _R - 2)], np.int32))


@functools.cache
def _jitted(cfg, **options):
  sampler = SamplerConfig(
      **{**dict(slots=5, max_response=_T, stop_ids=_STOP), **options})
  # Without LLVM's optimisations: they are most of the time to compile.
  return jax.jit(
      functools.partial(generate_lib.generate, cfg=cfg, sampler=sampler),
      compiler_options={'xla_backend_optimization_level': 0})


def _run(family, values=(), count=_R, key=_KEY, requests=None, **options):
  """Returns rollouts and statistics for the prompts and requests above."""
  cfg = _FAMILIES[family]
  requests = _requests() if requests is None else requests
  return _jitted(cfg, **options)(
      _params(cfg), Queue(_prompts(), requests, count), key,
      SamplingParams(**dict(values)), 12)


def _row(rollouts, i):
  n = int(rollouts.length[i])
  return [np.asarray(x[i, :n]) for x in (
      rollouts.tokens, rollouts.logprobs, rollouts.entropy)]


def _teacher_forced(cfg, tokens, i):
  """Returns float64 logits of request i's response from a full forward pass."""
  prompts, p = _prompts(), _requests().prompt[i]
  prompt = prompts.tokens[p, :prompts.length[p]]
  return reference.teacher_forced(_params(cfg), prompt, tokens, 6 + _T, cfg)


@functools.cache
def _one_at_a_time(family, values):
  cfg = _FAMILIES[family]
  return reference.generate(
      _params(cfg), _prompts(), _requests(), _R, _KEY, dict(values), cfg,
      max_response=_T, stop_ids=_STOP)


def _close(got, want, family):
  """Compares log-probs or entropies of a forward pass and a softmax."""
  cfg = _FAMILIES[family]
  np.testing.assert_allclose(
      got, want, rtol=0, atol=typical(
          decoder(cfg, 6 + _T), cfg.vocab_size,
          magnitude=max(1, np.abs(want).max())))


@pytest.mark.parametrize('family, options', [
    ('qwen2', {}), ('qwen3', {}), ('llama3', {}), ('gemma2', {}),
    ('llama3', dict(slots=3, chunk=2, steps_per_refill=3)),
    ('qwen2', dict(slots=3, unroll=True, transpose=150)),
    ('gemma2', dict(slots=3, chunk=4, unroll=True)),
    ('gemma3', dict(slots=3, unroll=True)),
    ('qwen3_moe', dict(slots=3, unroll=True, transpose=150))], ids=str)
def test_equals_one_request_at_a_time(family, options):
  for values in ((), tuple(_FILTERS.items())):
    rollouts, _ = _run(family, values, **options)
    for i, expected in enumerate(_one_at_a_time(family, values)):
      tokens, logprobs, entropy = _row(rollouts, i)
      np.testing.assert_array_equal(tokens, expected[0])
      _close(logprobs, expected[1], family)
      _close(entropy, expected[2], family)
      stopped = tokens[-1] in _STOP
      assert bool(rollouts.truncated[i]) == (not stopped)
      assert stopped or len(tokens) == _requests().budget[i]


@pytest.mark.parametrize('values', [
    dict(temperature=0.7), dict(top_k=10), dict(top_p=0.9), dict(min_p=0.1),
    dict(top_k=10, min_p=0.1), dict(temperature=0),
    dict(temperature=0.7, top_p=0.5, top_k=10, min_p=0.1)], ids=str)
def test_logprobs_are_those_of_a_full_forward(values):
  rollouts, _ = _run('gemma2', values, tempered=True)
  cut = 0
  for i in range(_R):
    tokens, logprobs, entropy = _row(rollouts, i)
    logits = _teacher_forced(_FAMILIES['gemma2'], tokens, i)
    for t, row in enumerate(logits):
      tempered, probs = reference.filtered(row, **values)
      _close(logprobs[t], np.log(probs[tokens[t]]), 'gemma2')
      _close(rollouts.tempered_logprobs[i, t], np.log(tempered[tokens[t]]),
             'gemma2')
      _close(entropy[t], reference.entropy(tempered), 'gemma2')
      cut += np.sum(probs > 0) < np.sum(tempered > 0)
    assert not np.any(rollouts.tempered_logprobs[i, len(tokens):])
  if cut:
    assert (rollouts.tempered_logprobs < rollouts.logprobs).any()
  else:
    np.testing.assert_array_equal(rollouts.tempered_logprobs, rollouts.logprobs)
  assert (cut > 0) == bool({'top_k', 'top_p', 'min_p'} & {*values})


def test_tempered_logprobs_are_recorded_on_demand_and_change_nothing():
  for values in ((), tuple(_FILTERS.items())):
    without, _ = _run('gemma2', values)
    with_them, _ = _run('gemma2', values, tempered=True)
    assert without.tempered_logprobs is None
    assert with_them.tempered_logprobs.dtype == jnp.float32
    np.testing.assert_array_equal(with_them.tokens, without.tokens)
    _close(with_them.logprobs, without.logprobs, 'gemma2')


@pytest.mark.parametrize('options', [
    dict(slots=1), dict(slots=20, steps_per_refill=4, chunk=4, unroll=True)],
    ids=str)
def test_a_request_keeps_its_tokens_in_any_slots(options):
  base, _ = _run('qwen3')
  other, _ = _run('qwen3', **options)
  np.testing.assert_array_equal(other.tokens, base.tokens)
  _close(other.logprobs, base.logprobs, 'qwen3')


@pytest.mark.parametrize('family', ('qwen3', 'qwen3_moe'))
def test_a_request_keeps_its_tokens_in_any_company(family):
  base = np.asarray(_run(family)[0].tokens)
  # Some of the requests in another order, one twice, with a smaller budget.
  some = np.array([9, 4, 15, 1, 4, 12])
  rows = np.pad(some, (0, _R - len(some)))
  requests = jax.tree.map(lambda x: x[rows], _requests())
  other, _ = _run(family, count=len(some), requests=requests)
  np.testing.assert_array_equal(other.tokens[:len(some)], base[some])
  requests = requests.replace(budget=np.minimum(requests.budget, 4))
  other, _ = _run(family, count=len(some), requests=requests)
  np.testing.assert_array_equal(other.tokens[:len(some), :4], base[some, :4])


def _constant_model(probs):
  """Makes a model whose next-token distribution is always `probs`."""
  v = len(probs)
  cfg = ModelConfig(vocab_size=v, width=8, layers=1, heads=1, kv_heads=1,
                    head_dim=8, mlp_width=4, tie_embeddings=False)
  params = jax.tree.map(jnp.zeros_like, _params(cfg))
  # The hidden state is all ones, so a row's sum is its logit.
  params.update(
      embed=jnp.ones((v, 8)), norm=jnp.ones(8),
      unembed=jnp.tile(jnp.log(jnp.asarray(probs))[:, None] / 8, 8))
  return params, cfg


def _samples(n, budget, prompts=1):
  """Draws n samples of each of `prompts` prompts of one token."""
  i = np.arange(prompts, dtype=np.int32)
  return (
      Prompts(np.zeros((prompts, 1), np.int32), np.ones(prompts, np.int32), i),
      Requests(i.repeat(n), np.tile(np.arange(n, dtype=np.int32), prompts),
               np.full(n * prompts, budget, np.int32)))


def test_draws_pass_a_chi_square_test():
  probs = np.array([0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.03, 0.015, 0.005])
  params, cfg = _constant_model(probs)
  run = _jitted(cfg, slots=250, max_response=100, stop_ids=())
  for values in ({}, dict(top_k=4, temperature=2.0)):
    rollouts, _ = run(
        params, Queue(*_samples(1000, 100), 1000), _KEY,
        SamplingParams(**values), 0)
    tokens = np.asarray(rollouts.tokens)
    _, expected = reference.filtered(np.log(probs), **values)
    counts = np.bincount(tokens.ravel(), minlength=len(probs))
    assert counts.sum() == 100_000
    seen = expected > 0
    assert not counts[~seen].any()
    assert stats.chisquare(
        counts[seen], 1e5 * expected[seen]).pvalue > 1e-3
    # And successive tokens are independent of each other.
    pairs = np.zeros((len(probs), len(probs)))
    np.add.at(pairs, (tokens[:, :-1].ravel(), tokens[:, 1:].ravel()), 1)
    assert stats.chi2_contingency(pairs[seen][:, seen]).pvalue > 1e-3


def test_no_two_samples_problems_or_steps_share_noise():
  params, cfg = _constant_model(np.full(50, 0.02))
  run = _jitted(cfg, slots=8, max_response=20, stop_ids=())
  prompts, requests = _samples(4, 20, prompts=5)
  steps = [
      np.asarray(run(params, Queue(prompts, requests, 20),
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
  later = (rows[:, None, 1:] == rows[None, :, :-1]).sum(-1)
  assert later.max() < 9


def test_stop_at_position_0_and_budget_1():
  requests = _samples(7, 4)[1].replace(
      budget=np.array([4, 1, 4, 2, 3, 1, _T], np.int32))
  rollouts = []
  for always in (5, 6):
    probs = np.full(13, 1e-9)
    probs[always] = 1.0
    params, cfg = _constant_model(probs)
    rollouts.append(_jitted(cfg, slots=3)(
        params, Queue(_samples(7, 4)[0], requests, 7), _KEY, SamplingParams(),
        0))
  (stopped, _), (cut, used) = rollouts  # 5 is a stop token, 6 isn't.
  np.testing.assert_array_equal(stopped.length, [1] * 7)
  np.testing.assert_array_equal(stopped.tokens, [[5] + [0] * 8] * 7)
  # The sum over 13 is 1 within rounding; its log.
  np.testing.assert_allclose(
      stopped.logprobs, 0, atol=rounding(13, FUNCTION))
  assert not stopped.truncated.any()
  np.testing.assert_array_equal(cut.length, requests.budget)
  np.testing.assert_array_equal(
      cut.tokens, 6 * (np.arange(_T) < requests.budget[:, None]))
  assert cut.truncated.all()
  assert used.busy == requests.budget.sum()


def test_only_the_first_count_requests_are_served():
  full, _ = _run('qwen3')
  for count in (0, 1, 7):
    some, used = _run('qwen3', count=count)
    np.testing.assert_array_equal(
        some.length, np.where(np.arange(_R) < count, full.length, 0))
    for name in ('tokens', 'logprobs', 'entropy', 'truncated'):
      got, expected = getattr(some, name), getattr(full, name)
      np.testing.assert_array_equal(got[:count], expected[:count])
      assert not np.any(got[count:])
    assert used.busy == np.sum(some.length)
    assert count or used.steps == 0
  requests = _requests()
  np.testing.assert_array_equal(full.policy_step, [12] * _R)
  np.testing.assert_array_equal(full.sample, requests.sample)
  np.testing.assert_array_equal(
      full.problem_id, _prompts().problem_id[requests.prompt])
  past = np.arange(_T) >= np.asarray(full.length)[:, None]
  for name in ('tokens', 'logprobs', 'entropy'):
    assert not np.any(np.asarray(getattr(full, name))[past])


def test_changing_values_never_recompiles():
  requests = _requests()
  for count, values in ((16, {}), (3, _FILTERS), (9, dict(temperature=0)),
                        (0, dict(top_k=2))):
    _run('qwen3', values, count, jax.random.key(count), requests)
    requests = requests.replace(budget=np.roll(requests.budget, 1))
  assert _jitted(_FAMILIES['qwen3'])._cache_size() == 1


def test_slots_are_used():
  params, cfg = _constant_model(np.full(13, 1 / 13))
  prompts, requests = _samples(256, 96)
  requests.budget[:] = np.minimum(
      np.random.default_rng(0).geometric(1 / 26, 256), 96)
  _, used = _jitted(cfg, slots=16, max_response=96, stop_ids=())(
      params, Queue(prompts, requests, 256), _KEY, SamplingParams(), 0)
  assert used.busy == requests.budget.sum()
  assert used.busy / (used.steps * 16) >= 0.75


def test_top_logprobs_are_of_the_tempered_distribution():
  """Truncation to 4 tokens does not change them."""
  values = dict(top_k=4, temperature=0.7)
  rollouts, _ = _run('llama3', values, top_logprobs=6)
  assert rollouts.top_ids.shape == (_R, 6, _T)
  for i in range(_R):
    tokens = _row(rollouts, i)[0]
    for t, row in enumerate(_teacher_forced(_FAMILIES['llama3'], tokens, i)):
      probs = reference.softmax(row / values['temperature'])
      best = np.argsort(-probs)[:6]
      np.testing.assert_array_equal(rollouts.top_ids[i, :, t], best)
      _close(rollouts.top_logprobs[i, :, t], np.log(probs[best]), 'llama3')
    assert not np.any(rollouts.top_ids[i, :, len(tokens):])
    assert not np.any(rollouts.top_logprobs[i, :, len(tokens):])


@pytest.mark.parametrize('chunk', [None, 2])
def test_bfloat16_keeps_probabilities_in_float32(chunk, monkeypatch):
  cfg = dataclasses.replace(_FAMILIES['gemma2'], dtype='bfloat16')
  monkeypatch.setitem(_FAMILIES, 'bfloat16', cfg)
  rollouts, _ = _run('bfloat16', chunk=chunk)
  assert rollouts.logprobs.dtype == rollouts.entropy.dtype == jnp.float32
  for i in range(_R):
    tokens, logprobs, _ = _row(rollouts, i)
    logits = _teacher_forced(cfg, tokens, i)
    expected = [np.log(reference.softmax(row)[token])
                for row, token in zip(logits, tokens)]
    # 2 layers round some 10 results each to bfloat16, and logits are capped at
    # 3. A wrong layer would be off by more than .5.
    np.testing.assert_allclose(logprobs, expected, rtol=0, atol=typical(
        2 * 10, magnitude=3, eps=EPS_16, safety=1))


@pytest.mark.parametrize('options, columns', [
    ({}, 15), (dict(chunk=4, unroll=True), 20),
    (dict(chunk=4, unroll=True, share_prompts=True), 12)], ids=str)
def test_the_cache_is_updated_in_place(options, columns):
  cfg = _FAMILIES['gemma2']
  slots = 3 if options else 5  # As above: the programs are compiled once.
  compiled = _jitted(cfg, **{**dict(slots=slots), **options}).lower(
      _params(cfg), Queue(_prompts(), _requests(), _R), _KEY, SamplingParams(),
      12
  ).compile()
  lead = '' if 'unroll' in options else '2,'
  shapes = [f'f32[{lead}{slots},2,6,{columns}]',
            f'f32[{lead}{slots},2,{columns},6]']
  if 'share_prompts' in options:  # 3 seats of 6 columns, in chunks of 4.
    shapes += ['f32[3,2,6,8]', 'f32[3,2,8,6]']
  # Only the entry computation, outside the loops, may copy a whole cache.
  text = compiled.as_text()
  assert all(shape in text for shape in shapes)
  loops = [part for part in text.split('\n\n') if 'ENTRY' not in part]
  assert not [
      line for part in loops for line in part.splitlines()
      if ' copy(' in line and any(f'= {s}' in line for s in shapes)]


def test_config_errors_name_the_field():
  for options in (dict(stop_ids=(3, 13)), dict(top_logprobs=14)):
    with pytest.raises(ValueError, match='vocab_size=13'):
      _run('qwen3', **options)
