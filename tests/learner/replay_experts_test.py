"""Tests of the sampler's experts, recorded and replayed by the learner."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import optimizer as optimizer_lib
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.models import experts, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling.config import SamplerConfig
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.types import Prompts, Requests, RolloutTokens
from tests.helpers import learners

V, L, T, P, N = 29, 9, 12, 6, 2
R = P * N
_CFG = ModelConfig(
    vocab_size=V, width=24, layers=5, heads=2, kv_heads=1, head_dim=12,
    mlp_width=32, qk_norm=True, tie_embeddings=False, experts=16,
    experts_per_token=4, expert_width=16, dense_layers=(1,))
_RECORD = experts.Record.of(_CFG)
_SGD = optimizer_lib.Optimizer(optax.sgd(1.0), optax.constant_schedule(1.0))
_LOSS = update_lib.LossParams(
    temperature=1.0, entropy_bonus=0.0, kl_coef=0.0, budget=1.0,
    objective=dict(clip_low=0.2, clip_high=0.2), importance={})


@functools.cache
def _params():
  """Makes weights whose experts and routers matter."""
  params = transformer.init(jax.random.key(0), _CFG)
  for name in ('experts_down', 'o', 'down'):
    params['layers'][name] *= 3.0
  params['unembed'] *= 2.0
  return params


def _queue():
  rng = np.random.default_rng(4)
  prompts = Prompts(
      rng.integers(0, V, (P, L)).astype(np.int32),
      np.array([L, 1, 2, 5, 3, 8], np.int32), np.arange(P, dtype=np.int32))
  rows = np.repeat(np.arange(P, dtype=np.int32), N)
  return Queue(prompts, Requests(
      rows, np.tile(np.arange(N, dtype=np.int32), P),
      np.array([1, T, 3, T, T, T, T, 5, T, T, T, T], np.int32)), np.int32(R))


def _sample(weights=None, **options):
  """Returns the rollouts of a sampler; it is compiled anew."""
  sampler = SamplerConfig(**dict(
      slots=5, max_response=T, stop_ids=(3,), record_experts=True) | options)
  run = jax.jit(
      functools.partial(generate_lib.generate, cfg=_CFG, sampler=sampler),
      compiler_options={'xla_backend_optimization_level': 0})
  return jax.device_get(run(
      weights or _params(), _queue(), jax.random.key(1), SamplingParams(),
      0)[0])


def _batch(rollouts, replayed):
  prompts = _queue().prompts
  row = np.repeat(np.arange(P), N)
  tokens = RolloutTokens(
      prompt=prompts.tokens[row], prompt_length=prompts.length[row],
      response=rollouts.tokens, length=rollouts.length,
      behaviour_logprobs=rollouts.logprobs,
      experts=rollouts.experts if replayed else None)
  return rows_lib.learner_batch(
      tokens, np.arange(R), np.linspace(-1, 1, R), np.ones(R, bool))


@functools.cache
def _learner():
  return learners.make(_CFG, learner_lib.LearnerConfig(
      tokens=4 * T, max_prompt=L, max_response=T, samples=N), _SGD)


def _gaps(rollouts, replayed):
  """Returns |log-prob of the sampler - of `score`| of the response tokens."""
  scores = learners.score(
      _learner(), _params(), _batch(rollouts, replayed), _LOSS,
      prompt=np.repeat(np.arange(P), N))
  real = np.arange(T) < rollouts.length[:, None]
  return np.abs(scores.logprobs - rollouts.logprobs)[real]


def _own(rollouts, i):
  """Returns the choices [S - 1, layers, k] of a whole pass over request i."""
  prompts = _queue().prompts
  before, after = prompts.length[i // N], rollouts.length[i]
  row = np.concatenate(
      [prompts.tokens[i // N, :before], rollouts.tokens[i, :after - 1]])
  _, kept = transformer.forward(_params(), jnp.asarray(row)[None], cfg=_CFG)
  return np.asarray(kept.experts)[:, 0].swapaxes(0, 1)


@pytest.mark.parametrize('options', [
    dict(unroll=True), dict(prefill_prompts=2, prefill_lengths=(4,)),
    dict(share_prompts=True, steps_per_refill=3)], ids=str)
def test_what_is_recorded(options):
  rollouts = _sample(**options)
  assert rollouts.experts.shape == (R, L + T, 4 * 4)
  assert rollouts.experts.dtype == np.uint8
  ends = _queue().prompts.length[np.arange(R) // N] + rollouts.length - 1
  found = _RECORD.unpack(jnp.asarray(rollouts.experts)).transpose(1, 2, 0, 3)
  same, count = 0, 0
  for i, end in enumerate(ends):
    got, want = (np.sort(x, -1) for x in (found[i, :end], _own(rollouts, i)))
    same, count = same + (got == want).sum(), count + got.size
    assert not rollouts.experts[i, end:].any()
  # Two experts may be equally probable but for rounding; if one place were
  # another's, 4 of 16 would agree by chance.
  assert count > 1000 and same > 0.995 * count


def test_calls_record_the_experts_of_their_own_tokens():
  """Each place once, also that of the last token before a call."""
  sampler = SamplerConfig(
      slots=5, max_response=T, stop_ids=(3,), record_experts=True,
      continues=True, continue_chunk=4)
  run = jax.jit(
      functools.partial(generate_lib.generate, cfg=_CFG, sampler=sampler),
      compiler_options={'xla_backend_optimization_level': 0})
  queue, done = _queue(), np.zeros(R, np.int32)
  prompt = np.repeat(queue.prompts.length, N)
  tokens, total, agreed, calls = np.zeros((R, T), np.int32), 0, 0, 0

  def call(rest, steps):
    order = np.pad(rest, (0, R - len(rest)))
    requests = jax.tree.map(lambda x: x[order], queue.requests.replace(
        done=done, tokens=tokens, birth=np.zeros(R, np.int32)))
    return jax.device_get(run(
        _params(), queue._replace(
            requests=requests, count=np.int32(len(rest)),
            max_steps=np.int32(steps)), jax.random.key(1), SamplingParams(),
        0)[0])

  whole = call(np.arange(R), R * T)
  while (rest := np.flatnonzero(done < whole.length)).size:
    out = call(rest, 4)
    for i, row in enumerate(rest):
      end = out.length[i]
      if end:
        # Those of this call alone: of the prompt, or from the last token on.
        first = 0 if not done[row] else prompt[row] - 1 + done[row]
        last = prompt[row] + end - 1
        got = np.sort(_RECORD.unpack(jnp.asarray(out.experts[i])))
        want = np.sort(_RECORD.unpack(jnp.asarray(whole.experts[row])))
        same = (got == want)[:, first:last]
        agreed += same.sum()
        assert not out.experts[i, :first].any()
        assert not out.experts[i, last:].any()
        tokens[row, done[row]:end] = out.tokens[i, done[row]:end]
        done[row], total = end, total + same.size
    calls += 1
  # As above: few are equally probable but for rounding.
  assert calls > 4 and agreed > .995 * total
  assert total == np.sum(prompt + whole.length - 1) * 16


def test_nothing_is_recorded_unasked():
  assert _sample(record_experts=False).experts is None


def _noisy(route):
  """Returns `route` with a choice by rounded inputs; weights are exact."""
  def noisy(x, router, *, chosen=None, **options):
    if chosen is None:
      _, chosen = route(
          x.astype(jnp.float8_e4m3fn).astype(x.dtype), router, **options)
    return route(x, router, chosen=chosen, **options)

  return noisy


def test_replay_undoes_rounding_of_the_routers_inputs(monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(experts, 'route', _noisy(experts.route))
    rollouts = _sample()
  own, replayed = (_gaps(rollouts, x) for x in (False, True))
  assert own.max() > 1e-2 and replayed.max() < 1e-4
  # Without old log-probs, an update compares its own with the sampler's.
  _, metrics = learners.update(
      _learner(), _learner().init(jax.tree.map(jnp.copy, _params())),
      _batch(rollouts, True), _LOSS, prompt=np.repeat(np.arange(P), N))
  assert metrics['behaviour_gap_max'] < 1e-4


def test_replay_halves_the_gap_of_int8_weights():
  weights = sharding.to_sampling(
      jax.eval_shape(_params), sharding.make_mesh(1, 1, 1), jnp.float32,
      kind='int8').apply(_params())
  rollouts = _sample(weights=weights)
  own, replayed = (_gaps(rollouts, x) for x in (False, True))
  assert replayed.mean() < own.mean() / 2
