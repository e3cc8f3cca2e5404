"""Tests of one queue per data shard: the same tokens as one device's queue.

On the meshes, the prompts use splash attention.
"""

import dataclasses
import functools

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

from jaxrl_llm import sharding
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling import plan as plan_lib
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.types import Prompts, Requests
from tests.helpers import devices
from tests.helpers.tolerance import decoder, typical

_CFG = ModelConfig(
    vocab_size=16, width=16, layers=2, heads=4, kv_heads=2, head_dim=8,
    mlp_width=32, qk_norm=True, experts=4, experts_per_token=2,
    expert_width=8, dense_layers=(0,))
_LOGPROBS = 'logprobs', 'tempered_logprobs'


def _on_meshes(shapes):
  """Returns tokens, lengths and log-probs, on one device and on meshes."""
  params = jax.jit(transformer.init, static_argnums=1)(
      jax.random.key(0), _CFG)
  rng = np.random.default_rng(0)
  prompts = Prompts(
      rng.integers(0, 16, (7, 5)).astype(np.int32),
      rng.integers(1, 6, 7).astype(np.int32), np.arange(7, dtype=np.int32))
  requests = Requests(
      np.arange(7, dtype=np.int32).repeat(6),
      np.tile(np.arange(6, dtype=np.int32), 7),
      rng.integers(1, 9, 42).astype(np.int32))
  sampler = generate_lib.SamplerConfig(
      slots=4, max_response=8, stop_ids=(3,), tempered=True)
  splash = dataclasses.replace(
      sampler, prefill_attention='splash_interpreted')
  # Without LLVM's optimisations: they are most of the time to compile.
  jit = lambda f, *args, sampler=sampler: jax.jit(
      functools.partial(f, *args, cfg=_CFG, sampler=sampler),
      compiler_options={'xla_backend_optimization_level': 0})
  key, sampling = jax.random.key(5), SamplingParams(temperature=0.9, top_k=12)
  rollouts, stats = jit(generate_lib.generate)(
      params, Queue(prompts, requests, 42), key, sampling, 0)
  results = [(rollouts, int(stats.busy))]
  for shape in shapes:
    mesh = sharding.make_mesh(*shape)
    shards = shape[0] * shape[1]
    plan = plan_lib.plan(
        prompts, requests, shards=shards, requests_per_shard=-(-42 // shards),
        prompts_per_shard=7)
    rows = NamedSharding(mesh, P(('data', 'fsdp')))
    put = lambda x, mesh=mesh: jax.device_put(x, NamedSharding(mesh, P()))
    placed = jax.device_put(params, sharding.shardings(
        params, sharding.SAMPLE_RULES, mesh))
    rollouts, stats = jit(generate_lib.sharded_generate, mesh, sampler=splash)(
        placed, jax.device_put(Queue(*plan[:3]), rows), put(key), put(sampling),
        put(0))
    assert stats.steps.shape == (shards,)
    rollouts = plan_lib.undo(rollouts, plan, np.arange(len(rollouts.length)))
    results.append((rollouts, int(stats.busy.sum())))
  return [
      dict(busy=busy, **{name: np.asarray(getattr(rollouts, name)).tolist()
                         for name in ('tokens', 'length', *_LOGPROBS)})
      for rollouts, busy in results]


def test_meshes_give_the_tokens_of_one_device():
  one, *others = devices.run(_on_meshes, [[8, 1, 1], [2, 2, 2]])
  assert one['busy'] == sum(one['length'])
  assert one['tempered_logprobs'] != one['logprobs']
  for other in others:
    assert other['tokens'] == one['tokens']
    assert other['length'] == one['length']
    assert other['busy'] == one['busy']
    # Sums of a forward pass over 5 + 8 tokens, and over the vocabulary.
    for name in _LOGPROBS:
      np.testing.assert_allclose(
          other[name], one[name], rtol=0, atol=typical(
              decoder(_CFG, 13), 16, magnitude=np.abs(one[name]).max()))
