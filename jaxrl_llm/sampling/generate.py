"""The sampler: decode slots serve a queue of requests in one jitted call.

R requests wait in a queue; S slots decode one token each per step. When a
request has ended, its slot stores the response and takes the next request, so
no slot waits for the longest response of a batch.

Each distinct prompt is prefilled once. Its keys and values are copied into the
slots of its samples, or into one place for all of them (`share_prompts`). If
the keys and values of all prompts do not fit into memory, there are several
prefills. Each one replaces the prompts of the last when the queue needs the
next ones; the slots then continue. Prefill computes no logits: a slot's first
decode step feeds the last prompt token again.

The response to a request depends only on its prompt, sample number and budget,
and on the key: token t is drawn with the t-th number of the stream of
fold_in(fold_in(key, problem id), sample).

Left out: a paged cache (slots are as long as the longest request), beam
search, prefixes shared between different prompts.
"""

import dataclasses
import functools

from flax import struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np

from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import quantise
from jaxrl_llm.sampling import decode, head, kv_cache, prefixes, queue
from jaxrl_llm.sampling import logits as logits_lib
from jaxrl_llm.sampling import stops as stops_lib
from jaxrl_llm.types import Prompts, Requests, Rollouts

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
  """Static settings of the sampler; each new value compiles a new program.

  Attributes:
    slots: S, requests decoded in parallel on each data shard.
    max_response: T, the longest response in tokens.
    stop_ids: tokens that end a response (they are part of it).
    stop_texts: texts that end a response, with the token that completes one.
    top_logprobs: K, likeliest tokens to record at each position, before
      truncation.
    tempered: whether to record the tokens' tempered log-probs too. Without
      truncation they are `logprobs`, and a second array is a waste.
    steps_per_refill: decode steps between refills of ended slots.
    chunk: cache columns that attention reads at a time; None for all at once
      (faster while the cache is short).
    unroll: whether to unroll the layers, each with its own cache: faster steps,
      longer compiles and a second copy of the layers' weights.
    transpose: elements of a matrix from which a decode step multiplies by its
      transpose: faster on a CPU. That copy has the layers' transposes; the
      unembedding is one already. None for no matrix.
    kv: quantised type of the keys and values in the slots' caches and between
      prefill and refill, see `quantise.TYPES`; None for the compute type.
    attention: implementation for the prefill, from `attention.resolve`.
    prefill_prompts: W, prompts whose keys and values exist at a time, in
      addition to the slots' caches; None for all.
    buckets: lengths to compile the prefill for, in addition to that of the
      prompts' rows; a prefill runs at the shortest that holds its prompts.
    share_prompts: whether slots of the same prompt read its keys and values
      from one place, see `prefixes.py`; else each slot has a copy.
  """
  slots: int
  max_response: int
  stop_ids: tuple[int, ...] = ()
  stop_texts: stops_lib.Texts | None = None
  top_logprobs: int = 0
  tempered: bool = False
  steps_per_refill: int = 2
  chunk: int | None = None
  unroll: bool = False
  transpose: int | None = None
  kv: str | None = None
  attention: str = 'xla'
  prefill_prompts: int | None = None
  buckets: tuple[int, ...] = ()
  share_prompts: bool = False

  def __post_init__(self):
    for name in ('slots', 'max_response', 'steps_per_refill', 'chunk',
                 'transpose', 'prefill_prompts'):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise ValueError(f'sampler {name}={value}: use at least 1.')
    if self.kv not in (None, *quantise.TYPES):
      raise ValueError(
          f'sampler kv={self.kv!r} is not a quantised type: use None, '
          f'{" or ".join(map(repr, quantise.TYPES))}.')


@struct.dataclass
class SamplerStats:
  """Use of the slots; the busy share is busy / (steps * slots).

  Attributes:
    steps: int32, decode steps run.
    busy: int32, slots that produced a token, summed over the steps.
  """
  steps: Array
  busy: Array


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
    params: the parameter tree.
    prompts: P prompts; rows of length 0 are filler.
    requests: R requests, served in order. With several prefills, requests of
      one prompt should be adjacent: each run of them prefills the prompt again.
    count: int32 scalar, requests to serve, at most R.
    key: the step's PRNG key.
    sampling: scalars that shape the distribution.
    policy_step: int32 scalar, recorded in the rollouts.
    cfg: the model.
    sampler: static settings.

  Returns:
    Responses in the order of their requests, and the use of the slots.

  Raises:
    ValueError: `stop_ids` or `top_logprobs` exceeds the vocabulary.
  """
  for field in ('stop_ids', 'top_logprobs'):
    value = getattr(sampler, field)
    if np.max(value, initial=0) > cfg.vocab_size - (field == 'stop_ids'):
      raise ValueError(
          f'sampler {field}={value} exceeds the vocabulary: use stop_ids below '
          f'and top_logprobs up to vocab_size={cfg.vocab_size}.')
  n, t_max = requests.prompt.shape[0], sampler.max_response
  prompt_max = prompts.tokens.shape[1]
  chunk, share = sampler.chunk, sampler.share_prompts
  prefix = kv_cache.round_up(prompt_max, chunk)
  ring = kv_cache.round_up(t_max, chunk)
  own_prefix = 0 if share else prefix
  form = dict(cfg=cfg, unroll=sampler.unroll, kv=sampler.kv)
  layers = params['layers']
  if sampler.unroll:
    layers = decode.split(layers, cfg, sampler.transpose)
  rope = transformer.rope_table(jnp.arange(prompt_max + t_max), cfg)

  # The extra row R is the request of an empty slot.
  pad = lambda x: jnp.pad(x, (0, 1))
  prompt = pad(requests.prompt)
  budget = pad(jnp.minimum(requests.budget, t_max))
  prompt_length = jnp.maximum(prompts.length[prompt], 1)
  last_token = prompts.tokens[prompt, prompt_length - 1]
  noise = queue.noise(
      key, prompts.problem_id[prompt], pad(requests.sample), t_max)
  few_rows = sampler.transpose is not None and (
      transformer.unembedding(params).size >= sampler.transpose)
  stop_ids = jnp.asarray(sampler.stop_ids, jnp.int32)
  texts = sampler.stop_texts

  def is_stop(token, match):
    found = jnp.any(token[..., None] == stop_ids, -1)
    return found if texts is None else found | texts.complete(match)

  def unfinished(state):
    return (state.served < count) | jnp.any(state.request < n)

  def refill(state, source, row, ready):
    """Stores the responses that ended and gives their slots new requests."""
    ended = ~state.alive & ((state.request < n) | (state.served < count))
    rank = state.served + jnp.cumsum(ended) - ended
    taken = jnp.where(rank < count, rank, n)
    ended &= ready[taken]
    order = jnp.argsort(~ended, stable=True)

    def refill_slot(i, carry):
      held, rows = carry
      slot = order[i]
      request = taken[slot]
      rows = queue.store(rows, state, slot)
      if share:
        held = prefixes.take(
            held, slot, jnp.where(request < n, prompt[request], -1), source,
            row[request])
      else:
        held = decode.copy_slot(held, slot, source, row[request])
      return held, rows

    held = prefixes.leave(state.pool, ended) if share else state.caches
    with jax.named_scope('refill'):
      held, rows = jax.lax.fori_loop(
          0, jnp.sum(ended), refill_slot, (held, state.rows))
    new = lambda fresh, old: jnp.where(ended, fresh, old)
    return state.replace(
        served=jnp.minimum(state.served + jnp.sum(ended), count),
        request=new(taken, state.request),
        alive=new(taken < n, state.alive),
        token=new(last_token[taken], state.token),
        position=new(0, state.position),
        start=new(state.step, state.start), rows=rows,
        match=texts and new(0, state.match),
        **{'pool' if share else 'caches': held})

  def advance(state):
    """Draws one token for every slot."""
    prefix_length = prompt_length[state.request] - 1
    cols = kv_cache.columns(
        state.step, state.position, jnp.minimum(prefix_length, own_prefix),
        prefix=own_prefix, ring=ring, chunk=chunk)
    shared = {}
    if share:
      seen = prefixes.view(
          state.pool, prefix_length, state.position, state.alive,
          columns=prefix, chunk=chunk)
      shared = dict(prefixes=state.pool.caches, prefix=functools.partial(
          prefixes.attend, seen=seen, cfg=cfg, chunk=chunk))
    hidden, caches = decode.step(
        params, layers, state.caches, state.token, cols,
        [table[prefix_length + state.position] for table in rope], cfg=cfg,
        chunk=chunk, **shared)
    drawn = head.next_tokens(
        params, hidden, noise[state.request, state.position], sampling,
        cfg=cfg, top_logprobs=sampler.top_logprobs, tempered=sampler.tempered,
        few_rows=few_rows)
    token = drawn['tokens']
    at = state.step % state.ring['tokens'].shape[0]
    position = state.position + state.alive
    match = texts and jnp.where(
        state.alive, texts.advance(state.match, token), state.match)
    return state.replace(
        step=state.step + 1,
        busy=state.busy + jnp.sum(state.alive),
        alive=state.alive & ~is_stop(token, match) & (
            position < budget[state.request]),
        match=match, token=token, position=position, caches=caches,
        ring={name: jax.lax.dynamic_update_index_in_dim(
            buffer, jnp.moveaxis(drawn[name], 0, -1), at, 0)
              for name, buffer in state.ring.items()})

  def serve(state, tokens, length, row):
    """Prefills some prompts and serves their requests and those in slots.

    Args:
      state: the state before.
      tokens: [W, L] int32, the prompts.
      length: [W] int32, their tokens.
      row: [R + 1] int32, row of each request's prompt in `tokens`; W or more
        for requests that wait for a later prefill.

    Returns:
      The state when all requests are done, or when a slot is free and the next
      request waits for a later prefill.
    """
    source = decode.prefill(
        params, tokens, length, buckets=sampler.buckets,
        attention=sampler.attention, **form)
    ready = row < len(tokens)

    def waiting(state):
      return (state.served < count) & ~ready[state.served] & ~jnp.all(
          state.alive)

    def refill_and_decode(state):
      state = refill(state, source, row, ready)
      # No steps if all slots are idle, or if a free one waits for a prefill.
      go = jnp.any(state.alive) & ~waiting(state)
      steps = jnp.where(go, sampler.steps_per_refill, 0)
      with jax.named_scope('decode'):
        return jax.lax.fori_loop(0, steps, lambda _, s: advance(s), state)

    with jax.named_scope('serve'):
      return jax.lax.while_loop(
          lambda s: unfinished(s) & ~waiting(s), refill_and_decode, state)

  pool = prefixes.empty(
      sampler.slots, len(prompts.length), prefix, **form) if share else None
  state = queue.empty(
      n, sampler.slots, decode.empty(sampler.slots, own_prefix + ring, **form),
      pool, max_response=t_max, steps_per_refill=sampler.steps_per_refill,
      top_logprobs=sampler.top_logprobs, tempered=sampler.tempered,
      texts=texts is not None)
  window = sampler.prefill_prompts
  if window is None or window >= len(prompts.length):
    state = serve(state, prompts.tokens, prompts.length, prompt)
  else:
    run = queue.runs(requests.prompt, count)

    def one_prefill(state):
      first = run[state.served]
      # First request of each run; n, a filler, after the last run.
      leader = jnp.searchsorted(
          run[:n], first + jnp.arange(window), method='compare_all')
      return serve(
          state, prompts.tokens[prompt[leader]],
          jnp.where(leader < n, prompts.length[prompt[leader]], 0), run - first)

    with jax.named_scope('prefills'):
      state = jax.lax.while_loop(unfinished, one_prefill, state)
  rows = {name: x[:n] for name, x in state.rows.items()}
  length, match = rows['length'], rows.pop('match', None)
  last = jnp.take_along_axis(
      rows['tokens'], jnp.maximum(length - 1, 0)[:, None], -1)[:, 0]
  rollouts = Rollouts(
      truncated=(length > 0) & ~is_stop(last, match),
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
  """Runs `generate` on every data shard of a mesh, each with its own queue.

  Shards never wait for one another. Every data shard has all parameters. Over
  the tensor axis, the partitioner splits the layers, and `head.py` the
  vocabulary.

  Args:
    mesh: mesh with axes 'data' and 'fsdp', whose product is the number of data
      shards.
    params: the parameter tree.
    prompts: [shards * P, ...], shard by shard.
    requests: [shards * R, ...], shard by shard; `prompt` is a row among the
      shard's own P prompts.
    count: [shards] int32.
    key: the step's PRNG key, the same on every shard.
    sampling: scalars that shape the distribution.
    policy_step: int32 scalar, recorded in the rollouts.
    cfg: the model.
    sampler: static settings, for each shard.

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
