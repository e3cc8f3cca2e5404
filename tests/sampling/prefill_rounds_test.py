"""Tests of prompts in rounds: the same responses, with less memory."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.evaluation import responses
from jaxrl_llm.loop import rollout
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.prepare import programs, stages
from jaxrl_llm.sampling import decode
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling import plan as plan_lib
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.sampling.stops import Stops
from jaxrl_llm.types import Prompts, Requests
from tests.helpers import devices, tiny
from tests.helpers.tolerance import decoder, typical

_CFG = ModelConfig(vocab_size=16, width=16, layers=2, heads=4, kv_heads=2,
                   head_dim=8, mlp_width=32, qk_norm=True)
_P, _L, _R, _T = 8, 6, 24, 7
_KEY = jax.random.key(5)
# Samples of each prompt: a screening of some, a continuation of others; rows
# 2 and 7 are filler. Their sum is _R.
_GROUPS = {0: range(2), 1: range(2, 9), 3: range(2), 4: range(3, 4),
           5: range(2, 9), 6: range(5)}


@functools.cache
def _params():
  params = transformer.init(jax.random.key(0), _CFG)
  return jax.tree.map(lambda x: x if x.ndim < 2 else 2 * x, params)


def _work(order=tuple(_GROUPS)):
  """Makes prompts and requests, with the groups in some order."""
  rng = np.random.default_rng(0)
  length = rng.integers(1, _L + 1, _P).astype(np.int32)
  length[[i for i in range(_P) if i not in _GROUPS]] = 0
  prompts = Prompts(
      rng.integers(0, 16, (_P, _L)).astype(np.int32), length,
      np.arange(50, 50 + _P, dtype=np.int32))
  prompt, sample = zip(*((p, s) for p in order for s in _GROUPS[p]))
  budget = [1 + (3 * p + 5 * s) % _T for p, s in zip(prompt, sample)]
  return prompts, Requests(*(
      np.array(x, np.int32) for x in (prompt, sample, budget)))


def _sampler(rounds, **options):
  return generate_lib.SamplerConfig(**{**dict(
      slots=4, max_response=_T, stop_ids=(3,), prefill_prompts=rounds),
      **options})


def _jit(function, *args, rounds, **options):
  # Without LLVM's optimisations: they are most of the time to compile.
  return jax.jit(
      functools.partial(
          function, *args, cfg=_CFG, sampler=_sampler(rounds, **options)),
      compiler_options={'xla_backend_optimization_level': 0})


@functools.cache
def _generate(rounds, **options):
  return _jit(generate_lib.generate, rounds=rounds, **options)


def _run(rounds, count=_R, work=None, **options):
  return _generate(rounds, **options)(
      _params(), Queue(*(work or _work()), count), _KEY, SamplingParams(), 0)


def _close(got, want):
  """Compares results of a forward pass and a sum over the vocabulary."""
  np.testing.assert_allclose(
      got, want, rtol=0, atol=typical(
          decoder(_CFG, _L + _T), 16, magnitude=max(1, np.abs(want).max())))


def _assert_equal(got, expected):
  for name in ('tokens', 'length', 'truncated', 'problem_id', 'sample'):
    np.testing.assert_array_equal(
        getattr(got, name), getattr(expected, name), name)
  for name in ('logprobs', 'entropy'):
    _close(getattr(got, name), getattr(expected, name))


@pytest.mark.parametrize('rounds, options', [
    (1, {}), (2, {}), (3, {}), (_P, {}), (1, dict(slots=20)),
    (2, dict(slots=3, chunk=2, share_prompts=True)),
    (None, dict(prefill_lengths=(2, 4))), (1, dict(prefill_lengths=(1, 3))),
    (2, dict(unroll=True, chunk=4, steps_per_refill=3, prefill_lengths=(2,)))],
                         ids=str)
def test_rounds_change_no_response_and_cost_no_step(rounds, options):
  for count in (_R, 13, 1, 0):
    expected, used = _run(None, count, **options)
    got, stats = _run(rounds, count, **options)
    _assert_equal(got, expected)
    assert (stats.steps, stats.busy) == (used.steps, used.busy)
    assert np.all((got.length > 0) == (np.arange(_R) < count))
  assert _generate(rounds, **options)._cache_size() == 1


def test_scattered_samples_are_served_as_well():
  prompts, requests = _work()
  order = np.random.default_rng(1).permutation(_R)
  requests = jax.tree.map(lambda x: x[order], requests)
  expected, _ = _run(None)
  got, _ = _run(2, work=(prompts, requests))
  _assert_equal(got, jax.tree.map(lambda x: x[order], expected))


@pytest.mark.parametrize('rounds, order, count, expected', [
    (2, (0, 1, 3, 4, 5, 6), _R, [(0, 1), (3, 4), (5, 6)]),
    (3, (0, 1, 3, 4, 5, 6), _R, [(0, 1, 3), (4, 5, 6)]),
    (4, (6, 5, 3, 1, 0, 4), _R, [(6, 5, 3, 1), (0, 4)]),
    # 10 requests are those of the first two prompts and one of the third.
    (2, (0, 1, 3, 4, 5, 6), 10, [(0, 1), (3,)]),
    (2, (0, 1, 3, 4, 5, 6), 9, [(0, 1)]),
    (None, (0, 1, 3, 4, 5, 6), 9, [range(_P)])])
def test_each_prompt_is_run_once_and_filler_not_at_all(
    rounds, order, count, expected, monkeypatch):
  seen, prefill = [], decode.prefill

  def watched(params, tokens, length, **form):
    jax.debug.callback(lambda x: seen.append(np.asarray(x)), tokens)
    return prefill(params, tokens, length, **form)

  monkeypatch.setattr(decode, 'prefill', watched)
  run = _jit(generate_lib.generate, rounds=rounds)  # Not one from the cache.
  work = _work(order)
  jax.block_until_ready(run(
      _params(), Queue(*work, count), _KEY, SamplingParams(), 0))
  jax.effects_barrier()
  assert len(seen) == len(expected)
  for tokens, rows in zip(seen, expected):
    assert len(tokens) == rounds or len(tokens) == _P
    np.testing.assert_array_equal(
        tokens[:len(rows)], work[0].tokens[list(rows)])


@pytest.mark.parametrize('length, columns', [
    ([1, 0], 1), ([1, 1], 1), ([2, 1], 3), ([1, 3], 3), ([4, 1], _L),
    ([_L, 1], _L)])
def test_a_prefill_runs_at_the_shortest_length_that_holds_its_prompts(
    length, columns, monkeypatch):
  ran, forward = [], transformer.forward

  def watched(params, tokens, **form):
    jax.debug.callback(lambda: ran.append(tokens.shape[1]))
    return forward(params, tokens, **form)

  monkeypatch.setattr(transformer, 'forward', watched)
  tokens = np.random.default_rng(0).integers(0, 16, (2, _L)).astype(np.int32)
  form = dict(cfg=_CFG, unroll=False)
  length = np.asarray(length, np.int32)
  got, _ = decode.prefill(_params(), tokens, length, buckets=(3, 1), **form)
  jax.block_until_ready(got)
  jax.effects_barrier()
  assert ran == [columns]
  want, _ = decode.prefill(_params(), tokens, length, **form)
  for x, y, axis in ((got.k, want.k, -1), (got.v, want.v, -2)):
    assert x.shape == y.shape
    x, y = np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0)
    _close(x[:columns], y[:columns])
    assert not x[columns:].any()


def _on_a_mesh(shape):
  """Returns responses without and with rounds, on shards of 2 or 3 prompts."""
  prompts, requests = _work()
  mesh = sharding.make_mesh(*shape)
  shards = shape[0] * shape[1]
  plan = plan_lib.plan(
      prompts, requests, shards=shards, requests_per_shard=8,
      prompts_per_shard=4)
  rows = NamedSharding(mesh, P(('data', 'fsdp')))
  put = lambda x: jax.device_put(x, NamedSharding(mesh, P()))
  params = jax.device_put(_params(), sharding.shardings(
      _params(), sharding.SAMPLE_RULES, mesh))
  results = [_run(None)[0]]
  for rounds, options in (
      (1, {}), (3, dict(prefill_lengths=(2, 4), chunk=2, share_prompts=True))):
    rollouts, _ = _jit(
        generate_lib.sharded_generate, mesh, rounds=rounds, **options)(
        params, jax.device_put(Queue(*plan[:3]), rows), put(_KEY),
        put(SamplingParams()), put(0))
    results.append(plan_lib.undo(
        rollouts, plan, np.arange(len(rollouts.length))))
  return [
      {name: np.asarray(getattr(x, name)).tolist()
       for name in ('tokens', 'length', 'logprobs')} for x in results]


def test_rounds_on_a_mesh():
  one, *others = devices.run(_on_a_mesh, [2, 2, 2])
  for other in others:
    assert other['tokens'] == one['tokens']
    assert other['length'] == one['length']
    _close(other['logprobs'], one['logprobs'])


def _compiled(rounds, prompts, length):
  ints = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
  return _jit(generate_lib.generate, rounds=rounds).lower(
      _params(), Queue(
          Prompts(ints(prompts, length), ints(prompts), ints(prompts)),
          Requests(ints(_R), ints(_R), ints(_R)), _R), _KEY, SamplingParams(), 0
  ).compile()


def test_fewer_prompts_at_a_time_take_less_memory():
  prompts, length = 32, 128
  temp = {rounds: _compiled(rounds, prompts, length).memory_analysis()
          .temp_size_in_bytes for rounds in (None, 8, 2)}
  one = 2 * 2 * 2 * 8 * length * 4  # Layers, k and v, heads, width, bytes.
  assert temp[None] - temp[8] > 24 * one
  assert temp[8] - temp[2] > 6 * one


def test_rounds_copy_no_cache():
  # Of 3 prompts of 11 tokens, and of 4 slots of 11 + 7 columns. What a fusion
  # calls a copy is a view of what it reads.
  loops = [
      part for part in _compiled(3, 7, 11).as_text().split('\n\n')
      if not part.startswith(('%fused', 'ENTRY'))]
  # Prefixes are written once more as they are made, in another order.
  for shape, copies in {
      'f32[2,3,2,8,11]': 1, 'f32[2,3,2,11,8]': 1,
      'f32[2,4,2,8,18]': 0, 'f32[2,4,2,18,8]': 0}.items():
    assert any(shape in part for part in loops)
    found = [
        line for part in loops for line in part.splitlines()
        if f'= {shape}' in line and ' copy(' in line]
    assert len(found) <= copies, found


def _evaluation(config):
  """Samples 7 problems as `evaluate` does and returns their tokens."""
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  sample = rollout.host_sampler(
      programs.make_sampler(
          config, mesh, _CFG, Stops((3,)),
          stages.make_stages(config).curriculum),
      mesh)
  tokens = []
  for problem, number in responses.calls(
      [range(1 + i % 3) for i in range(7)],
      max_prompts=config.prompts_per_step,
      max_requests=config.prompts_per_step * config.samples_per_prompt):
    rows, local = np.unique(problem, return_inverse=True)
    prompts = jax.tree.map(lambda x: x[rows], _work()[0]).replace(
        length=np.full(len(rows), _L, np.int32))
    requests = Requests(
        local.astype(np.int32), number.astype(np.int32),
        np.full(len(local), config.max_response, np.int32))
    got, _ = sample(
        _params(), prompts, requests, _KEY, SamplingParams(), policy_step=0)
    tokens.append(got.tokens)
  return np.concatenate(tokens)


def test_an_evaluation_in_rounds(monkeypatch):
  seen, original = [], generate_lib.SamplerConfig.check

  def watched(self, cfg):
    seen.append(self.prefill_prompts)
    original(self, cfg)

  monkeypatch.setattr(generate_lib.SamplerConfig, 'check', watched)
  one, *others = (
      _evaluation(tiny.load(sampling__prefill_prompts=rounds))
      for rounds in (None, 3, 99))
  assert seen == [4, 3, 4]  # No more than the prompts of a step.
  for other in others:
    np.testing.assert_array_equal(other, one)
