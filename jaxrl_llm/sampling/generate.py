"""A request queue served by decode slots, inside one jitted call.

R requests wait in a queue; S slots decode one token each per step. A slot
whose request has ended hands its response over and takes the next request,
so no slot waits for the longest response of a batch. Each distinct prompt is
run through the model once; its keys and values are copied into the slots of
its samples. Prefill needs no logits: the last prompt token is fed again as a
slot's first decode step.

What a request generates depends on its prompt, its sample number, its budget
and the key, and on nothing else: token t is drawn with the t-th number of the
stream of fold_in(fold_in(key, problem id), sample).

Left out: a paged cache (slots are as long as the longest request), beam
search, prefixes shared between different prompts.
"""

import dataclasses

from flax import struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np

from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import decode, head, kv_cache
from jaxrl_llm.sampling import logits as logits_lib
from jaxrl_llm.types import Prompts, Requests, Rollouts

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
  """Static choices of the sampler; another value is another program.

  Attributes:
    slots: S, requests decoded side by side on each data shard.
    max_response: T, the longest response in tokens.
    stop_ids: tokens that end a response (they are part of it).
    top_logprobs: K, likeliest tokens to record at each position.
    steps_per_refill: decode steps between looks at the queue.
    chunk: cache columns that attention reads at a time; None for all at once
      (faster while the cache is short).
    unroll: unroll the layers, each with a cache of its own: faster steps,
      longer compiles and a second copy of the layers' weights.
    attention: of the prefill, from `attention.resolve`.
  """
  slots: int
  max_response: int
  stop_ids: tuple[int, ...] = ()
  top_logprobs: int = 0
  steps_per_refill: int = 2
  chunk: int | None = None
  unroll: bool = False
  attention: str = 'xla'

  def __post_init__(self):
    for name in ('slots', 'max_response', 'steps_per_refill', 'chunk'):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise ValueError(f'sampler {name}={value}: use at least 1.')


@struct.dataclass
class SamplerStats:
  """Where the slots' time went; slot use is busy / (steps * slots).

  Attributes:
    steps: int32, decode steps run.
    busy: int32, slots that produced a token, summed over the steps.
  """
  steps: Array
  busy: Array


@struct.dataclass
class _State:
  """What the decode loop carries.

  Attributes:
    step: int32 scalar, decode steps done.
    served: int32 scalar, requests taken from the queue.
    busy: int32 scalar, see SamplerStats.
    request: [S] int32, request in each slot; R for none.
    alive: [S] bool, the slot's response goes on.
    token: [S] int32, the token to feed next.
    position: [S] int32, response tokens so far.
    start: [S] int32, step at which the request entered.
    caches: keys and values.
    ring: what was drawn at the latest steps, each array [ring, S, ...]; each
      step writes one row, as in the cache.
    rows: finished responses, each array [R + 1, ...]; row R is a dummy.
  """
  step: Array
  served: Array
  busy: Array
  request: Array
  alive: Array
  token: Array
  position: Array
  start: Array
  caches: decode.Caches
  ring: dict[str, Array]
  rows: dict[str, Array]


def generate(
    params: transformer.Params,
    prompts: Prompts,
    requests: Requests,
    count: Array,
    key: Array,
    sampling: logits_lib.SamplingParams,
    policy_step: Array,
    *,
    cfg: ModelConfig,
    sampler: SamplerConfig,
) -> tuple[Rollouts, SamplerStats]:
  """Serves the first `count` requests.

  Args:
    params: the model.
    prompts: P prompts; rows of length 0 are filler.
    requests: R requests, taken in order.
    count: int32 scalar, requests to serve, at most R.
    key: the step's PRNG key.
    sampling: scalars that shape the distribution.
    policy_step: int32 scalar, recorded with the rollouts.
    cfg: the model.
    sampler: static choices.

  Returns:
    Responses in the order of their requests, and how busy the slots were.

  Raises:
    ValueError: `sampler` asks for tokens that the vocabulary hasn't.
  """
  for field in ('stop_ids', 'top_logprobs'):
    value = getattr(sampler, field)
    if np.max(value, initial=0) > cfg.vocab_size - (field == 'stop_ids'):
      raise ValueError(
          f'sampler {field}={value} goes beyond vocab_size={cfg.vocab_size}.')
  n, t_max = requests.prompt.shape[0], sampler.max_response
  prompt_max = prompts.tokens.shape[1]
  prefix = kv_cache.round_up(prompt_max, sampler.chunk)
  ring = kv_cache.round_up(t_max, sampler.chunk)
  form = dict(cfg=cfg, unroll=sampler.unroll)
  prefixes = decode.prefill(
      params, prompts.tokens, attention=sampler.attention, **form)
  layers = params['layers']
  if sampler.unroll:
    layers = decode.split(layers, cfg)
  rope = transformer.rope_table(jnp.arange(prompt_max + t_max), cfg)

  # One row more than there are requests stands for the empty slot.
  pad = lambda x: jnp.pad(x, (0, 1))
  prompt = pad(requests.prompt)
  budget = pad(jnp.minimum(requests.budget, t_max))
  prompt_length = jnp.maximum(prompts.length[prompt], 1)
  last_token = prompts.tokens[prompt, prompt_length - 1]
  noise = _noise(
      key, prompts.problem_id[prompt], pad(requests.sample), t_max)
  stop_ids = jnp.asarray(sampler.stop_ids, jnp.int32)

  def is_stop(token):
    return jnp.any(token[..., None] == stop_ids, -1)

  def refill(state):
    """Stores the responses that ended and hands out the next requests."""
    ended = ~state.alive & ((state.request < n) | (state.served < count))
    rank = state.served + jnp.cumsum(ended) - ended
    taken = jnp.where(rank < count, rank, n)
    order = jnp.argsort(~ended, stable=True)

    def exchange(i, carry):
      caches, rows = carry
      slot = order[i]
      rows = _store(
          rows, state.ring, slot, state.request[slot], state.start[slot],
          state.position[slot])
      row = prompt[taken[slot]]
      return decode.copy_slot(caches, slot, prefixes, row), rows

    with jax.named_scope('refill'):
      caches, rows = jax.lax.fori_loop(
          0, jnp.sum(ended), exchange, (state.caches, state.rows))
    new = lambda fresh, old: jnp.where(ended, fresh, old)
    return state.replace(
        served=jnp.minimum(state.served + jnp.sum(ended), count),
        request=new(taken, state.request),
        alive=new(taken < n, state.alive),
        token=new(last_token[taken], state.token),
        position=new(0, state.position),
        start=new(state.step, state.start),
        caches=caches, rows=rows)

  def advance(state):
    """One token for every slot."""
    prefix_length = prompt_length[state.request] - 1
    cols = kv_cache.columns(
        state.step, state.position, prefix_length, prefix=prefix, ring=ring,
        chunk=sampler.chunk)
    hidden, caches = decode.step(
        params, layers, state.caches, state.token, cols,
        [table[prefix_length + state.position] for table in rope], cfg=cfg,
        chunk=sampler.chunk)
    drawn = head.next_tokens(
        params, hidden, noise[state.request, state.position], sampling,
        cfg=cfg, top_logprobs=sampler.top_logprobs)
    token = drawn['tokens']
    at = state.step % state.ring['tokens'].shape[0]
    position = state.position + state.alive
    return state.replace(
        step=state.step + 1,
        busy=state.busy + jnp.sum(state.alive),
        alive=state.alive & ~is_stop(token) & (
            position < budget[state.request]),
        token=token, position=position, caches=caches,
        ring={name: jax.lax.dynamic_update_index_in_dim(
            buffer, drawn[name], at, 0)
              for name, buffer in state.ring.items()})

  def turn(state):
    state = refill(state)
    # No step after the last response has been handed over.
    steps = jnp.where(jnp.any(state.alive), sampler.steps_per_refill, 0)
    with jax.named_scope('decode'):
      return jax.lax.fori_loop(0, steps, lambda _, s: advance(s), state)

  with jax.named_scope('serve'):
    state = jax.lax.while_loop(
        lambda s: (s.served < count) | jnp.any(s.request < n), turn,
        _empty_state(
            n, decode.empty(sampler.slots, prefix + ring, **form), sampler))
  rows = {name: x[:n] for name, x in state.rows.items()}
  length = rows['length']
  last = jnp.take_along_axis(
      rows['tokens'], jnp.maximum(length - 1, 0)[:, None], -1)[:, 0]
  rollouts = Rollouts(
      truncated=(length > 0) & ~is_stop(last),
      problem_id=prompts.problem_id[requests.prompt],
      sample=requests.sample,
      policy_step=jnp.full((n,), policy_step, jnp.int32),
      **rows)
  return rollouts, SamplerStats(state.step, state.busy)


def sharded_generate(
    mesh: Mesh,
    params: transformer.Params,
    prompts: Prompts,
    requests: Requests,
    count: Array,
    key: Array,
    sampling: logits_lib.SamplingParams,
    policy_step: Array,
    *,
    cfg: ModelConfig,
    sampler: SamplerConfig,
) -> tuple[Rollouts, SamplerStats]:
  """`generate` on every data shard of a mesh, each with its own queue.

  Shards never wait for one another. Parameters are whole on every data shard;
  over the tensor axis, layers are split by the partitioner, the vocabulary by
  `head.py`.

  Args:
    mesh: with axes 'data' and 'fsdp'; their product is the number of shards.
    params: the model.
    prompts: [shards * P, ...], each shard's rows together.
    requests: [shards * R, ...], with rows of their own shard's prompts.
    count: [shards] int32.
    key: the step's PRNG key, the same everywhere.
    sampling: scalars.
    policy_step: int32 scalar.
    cfg: the model.
    sampler: static choices, per shard.

  Returns:
    Rollouts [shards * R, ...] and statistics [shards].
  """
  def local(params, prompts, requests, count, key, sampling, policy_step):
    rollouts, stats = generate(
        params, prompts, requests, count[0], key, sampling, policy_step,
        cfg=cfg, sampler=sampler)
    return rollouts, jax.tree.map(lambda x: x[None], stats)

  axes = ('data', 'fsdp')
  rows = P(axes)
  return jax.shard_map(
      local, mesh=mesh, axis_names=set(axes),
      in_specs=(P(), rows, rows, rows, P(), P(), P()), out_specs=rows,
      check_vma=False)(
          params, prompts, requests, count, key, sampling, policy_step)


def _noise(key, problem, sample, length):
  """Uniform numbers [R, length], fixed by key, problem and sample."""
  keys = jax.vmap(
      lambda p, s: jax.random.fold_in(jax.random.fold_in(key, p), s))(
          problem, sample)
  return jax.vmap(lambda k: jax.random.uniform(k, (length,)))(keys)


def _empty_state(n, caches, sampler) -> _State:
  """All slots idle, nothing served."""
  slots, t = sampler.slots, sampler.max_response
  zero = jnp.zeros((), jnp.int32)
  kinds = dict(
      tokens=((), jnp.int32), logprobs=((), jnp.float32),
      entropy=((), jnp.float32))
  if sampler.top_logprobs:
    k = (sampler.top_logprobs,)
    kinds.update(top_ids=(k, jnp.int32), top_logprobs=(k, jnp.float32))
  rows = {
      name: jnp.zeros((n + 1, t, *extra), kind)
      for name, (extra, kind) in kinds.items()}
  rows['length'] = jnp.zeros((n + 1,), jnp.int32)
  per_slot = jnp.zeros((slots,), jnp.int32)
  # A slot that ended waits for the next refill while the ring turns on.
  ring = t + sampler.steps_per_refill - 1
  return _State(
      step=zero, served=zero, busy=zero,
      request=jnp.full((slots,), n, jnp.int32),
      alive=jnp.zeros((slots,), bool),
      token=per_slot, position=per_slot, start=per_slot,
      caches=caches,
      ring={name: jnp.zeros((ring, slots, *extra), kind)
            for name, (extra, kind) in kinds.items()},
      rows=rows)


def _store(rows, ring, slot, request, start, length):
  """Copies a slot's response out of the ring into its request's row."""
  t = jnp.arange(rows['tokens'].shape[1])
  steps = (start + t) % ring['tokens'].shape[0]

  def row(buffer):
    x = buffer[steps, slot]
    return jnp.where((t < length).reshape(-1, *[1] * (x.ndim - 1)), x, 0)

  new = dict({name: row(x) for name, x in ring.items()}, length=length)
  return {
      name: jax.lax.dynamic_update_index_in_dim(x, new[name], request, 0)
      for name, x in rows.items()}
