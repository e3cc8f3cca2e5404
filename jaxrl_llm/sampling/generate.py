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

With `continues`, a request may have the beginning of its response, which
`continuation.py` computes when a slot takes it. The key is that of the run, and
the step's is fold_in(key, birth): a response in parts is drawn with the numbers
of a whole one.

Left out: a paged cache (slots are as long as the longest request), beam
search, prefixes shared between different prompts.
"""

import functools
from typing import NamedTuple

from flax import struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxrl_llm.models import experts, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import continuation, decode, head, kv_cache, prefixes
from jaxrl_llm.sampling import logits as logits_lib
from jaxrl_llm.sampling import queue as queue_lib
from jaxrl_llm.sampling.config import SamplerConfig
from jaxrl_llm.sampling.queue import DecodeState, Lookup, Queue
from jaxrl_llm.types import Rollouts

Array = jax.Array


@struct.dataclass
class SamplerStats:
  """Use of the slots; the busy share is busy / (steps * slots).

  Attributes:
    steps: int32, decode steps run.
    busy: int32, slots that produced a token, summed over the steps.
  """
  steps: Array
  busy: Array


class _Call(NamedTuple):
  """Inputs that all steps of a call read.

  Attributes:
    cfg: the model.
    sampler: static choices.
    weights: parameters as decode steps read them.
    rope: tables of positions [L + T], from `transformer.rope_table`.
    requests: look-up by the request in a slot.
    queue: requests to serve.
    sampling: scalars that shape the distribution.
    prompt_columns: columns of a prompt, a multiple of the chunk.
    ring: columns of a response, likewise.
    few_rows: whether the unembedding multiplies few rows at a time, on a CPU.
    stop_ids: [n] int32, tokens that end a response.
  """
  cfg: ModelConfig
  sampler: SamplerConfig
  weights: decode.DecodeParams
  rope: transformer.Rope
  requests: Lookup
  queue: Queue
  sampling: logits_lib.SamplingParams
  prompt_columns: int
  ring: int
  few_rows: bool
  stop_ids: Array

  @property
  def own_columns(self) -> int:
    """Columns of a prompt in each slot's cache; 0 if slots share prompts."""
    return 0 if self.sampler.share_prompts else self.prompt_columns

  @property
  def form(self) -> dict:
    """Arguments that give caches their form."""
    return dict(cfg=self.cfg, unroll=self.sampler.unroll, kv=self.sampler.kv)


def generate(
    params: transformer.Params,
    queue: Queue,
    key: Array,
    sampling: logits_lib.SamplingParams,
    policy_step: Array,
    *,
    cfg: ModelConfig,
    sampler: SamplerConfig,
) -> tuple[Rollouts, SamplerStats]:
  """Serves a queue of requests.

  Args:
    params: the parameter tree.
    queue: R requests, of which the first `count` are served.
    key: the step's PRNG key; with `sampler.continues` the run's.
    sampling: scalars that shape the distribution.
    policy_step: int32 scalar, recorded in the rollouts.
    cfg: the model.
    sampler: static choices.

  Returns:
    Responses in the order of their requests, and the use of the slots.

  Raises:
    ValueError: a setting of the sampler does not fit the model or the requests.
  """
  sampler.check(cfg)
  call = _prepared(params, queue, key, sampling, cfg, sampler)
  prompts, requests, count, _ = queue
  pool = prefixes.empty(
      sampler.slots, len(prompts.length), call.prompt_columns, **call.form
  ) if sampler.share_prompts else None
  state = queue_lib.empty(
      len(requests.prompt), decode.empty(
          sampler.slots, call.own_columns + call.ring, **call.form), pool,
      sampler, experts.Record.of(cfg).empty(prompts.tokens.shape[1])
      if sampler.record_experts else None)
  window = sampler.prefill_prompts
  if window is None or window >= len(prompts.length):
    state = _serve(
        call, state, prompts.tokens, prompts.length, call.requests.prompt)
  else:
    run = queue_lib.runs(requests.prompt, count)
    none = len(requests.prompt)

    def prefill_and_serve(state):
      first = run[state.served]
      # First request of each run; `none`, a filler, after the last run.
      leader = jnp.searchsorted(
          run[:none], first + jnp.arange(window), method='compare_all')
      prompt = call.requests.prompt[leader]
      return _serve(
          call, state, prompts.tokens[prompt],
          jnp.where(leader < none, prompts.length[prompt], 0), run - first)

    with jax.named_scope('prefills'):
      state = jax.lax.while_loop(
          lambda state: queue_lib.unfinished(state, queue), prefill_and_serve,
          state)
  if queue.max_steps is not None:
    state = queue_lib.store_all(state, call.requests)
  return _rollouts(call, state, policy_step), SamplerStats(
      state.step, state.busy)


def _prepared(params, queue, key, sampling, cfg, sampler) -> _Call:
  """Computes the values that stay the same over the steps of a call."""
  layers = params['layers']
  if sampler.unroll:
    layers = decode.split(layers, cfg, sampler.transpose)
  longest_prompt = queue.prompts.tokens.shape[1]
  few_rows = sampler.transpose is not None and (
      transformer.unembedding(params).size >= sampler.transpose)
  return _Call(
      cfg, sampler, decode.DecodeParams(params, layers),
      transformer.rope_table(
          jnp.arange(longest_prompt + sampler.max_response), cfg),
      queue_lib.lookup(queue, key, sampler), queue, sampling,
      kv_cache.round_up(longest_prompt, sampler.chunk),
      kv_cache.round_up(sampler.max_response, sampler.chunk), few_rows,
      jnp.asarray(sampler.stop_ids, jnp.int32))


def _serve(
    call: _Call, state: DecodeState, tokens: Array, length: Array, row: Array,
) -> DecodeState:
  """Prefills some prompts and serves their requests and those in slots.

  Args:
    call: values that all steps read.
    state: the state before.
    tokens: [W, L] int32, the prompts.
    length: [W] int32, their tokens.
    row: [R + 1] int32, row of each request's prompt in `tokens`; W or more
      for requests that wait for a later prefill.

  Returns:
    The state when all requests are done, or when a slot is free and the next
    request waits for a later prefill.
  """
  sampler, queue = call.sampler, call.queue
  caches, of_prompts = decode.prefill(
      call.weights.params, tokens, length, buckets=sampler.prefill_lengths,
      attention=sampler.prefill_attention, **call.form)
  prefilled = queue_lib.Prefilled(
      caches, row, row < len(tokens),
      of_prompts if sampler.record_experts else None)

  def waiting(state):
    return (state.served < queue.count) & ~prefilled.ready[
        state.served] & ~jnp.all(state.alive)

  def refill_and_decode(state):
    state = queue_lib.refill(
        state, prefilled, call.requests, queue.count,
        functools.partial(_extend, call, prefilled, state.step)
        if sampler.continues else None)
    # No steps if all slots are idle, or if a free one waits for a prefill.
    go = jnp.any(state.alive) & ~waiting(state)
    steps = jnp.where(go, sampler.steps_per_refill, 0)
    if queue.max_steps is not None:
      steps = jnp.minimum(steps, queue.max_steps - state.step)
    with jax.named_scope('decode'):
      return jax.lax.fori_loop(
          0, steps, lambda _, state: _decode(call, state), state)

  # The length of this loop depends on the data. Its name tells compile_check
  # which loop it is, whose turns it counts from the config.
  with jax.named_scope('serve'):
    return jax.lax.while_loop(
        lambda state: queue_lib.unfinished(state, queue) & ~waiting(state),
        refill_and_decode, state)


def _extend(call, prefilled, step, caches, slot, request):
  """Computes the existing tokens of a request into its slot's ring.

  Args:
    call: values that all steps read.
    prefilled: the request's prompt among others.
    step: int32 scalar, the decode step that comes next.
    caches: of the slots.
    slot: int32 scalar.
    request: int32 scalar.

  Returns:
    The caches.
  """
  sampler, existing = call.sampler, call.requests.existing
  done = existing.done[request]
  prefix = call.requests.prompt_length[request] - 1

  def compute(_, caches):
    row = continuation.compute(
        call.weights, continuation.empty(
            prefilled.caches, prefilled.row[request], call.ring, sampler),
        existing.fed[request], done, prefix, call.rope, cfg=call.cfg,
        sampler=sampler)
    return continuation.put(
        caches, slot, row, prefix, step - done, prefix=call.own_columns)

  # A loop of one turn or none, as in `prefixes.take`.
  with jax.named_scope('continued'):
    return jax.lax.fori_loop(0, (done > 0).astype(jnp.int32), compute, caches)


def _decode(call: _Call, state: DecodeState) -> DecodeState:
  """Draws one token for every slot.

  Idle slots compute too: shapes are static. What they draw is not recorded.
  """
  cfg, sampler, requests = call.cfg, call.sampler, call.requests
  # The last prompt token is fed by the first decode step.
  prefix_length = requests.prompt_length[state.request] - 1
  cols = kv_cache.columns(
      state.step, state.position,
      jnp.minimum(prefix_length, call.own_columns), prefix=call.own_columns,
      ring=call.ring, chunk=sampler.chunk)
  shared = None
  if sampler.share_prompts:
    seen = prefixes.view(
        state.pool, prefix_length, state.position, state.alive,
        columns=call.prompt_columns, chunk=sampler.chunk)
    shared = decode.Prefixes(state.pool.caches, functools.partial(
        prefixes.attend, seen=seen, cfg=cfg))
  hidden, caches, chosen = decode.step(
      call.weights, state.caches, state.token, cols,
      [table[prefix_length + state.position] for table in call.rope], cfg=cfg,
      prefixes=shared, record=sampler.record_experts)
  drawn = head.next_tokens(
      call.weights.params, hidden,
      requests.noise[state.request, state.position], call.sampling, cfg=cfg,
      top_logprobs=sampler.top_logprobs, tempered=sampler.tempered,
      few_rows=call.few_rows)
  if chosen is not None:
    drawn['experts'] = chosen
  token = drawn['tokens']
  at = state.step % state.ring['tokens'].shape[0]
  position = state.position + state.alive
  match = sampler.stop_texts and jnp.where(
      state.alive, sampler.stop_texts.advance(state.match, token), state.match)
  return state.replace(
      step=state.step + 1,
      busy=state.busy + jnp.sum(state.alive),
      alive=state.alive & ~_is_stop(call, token, match) & (
          position < requests.budget[state.request]),
      match=match, token=token, position=position, caches=caches,
      ring={name: jax.lax.dynamic_update_index_in_dim(
          buffer, jnp.moveaxis(drawn[name], 0, -1), at, 0)
            for name, buffer in state.ring.items()})


def _is_stop(call: _Call, token: Array, match: Array | None) -> Array:
  """Returns whether tokens end their responses; `match` is after them."""
  is_id = jnp.any(token[..., None] == call.stop_ids, -1)
  texts = call.sampler.stop_texts
  return is_id if texts is None else is_id | texts.complete(match)


def _rollouts(call: _Call, state: DecodeState, policy_step: Array) -> Rollouts:
  """Makes the rollouts of the finished responses."""
  prompts, requests, *_ = call.queue
  n = len(requests.prompt)
  rows = {name: x[:n] for name, x in state.rows.items()}
  length, match = rows['length'], rows.get('match')
  if not call.sampler.continues:
    rows.pop('match', None)
  last = jnp.take_along_axis(
      rows['tokens'], jnp.maximum(length - 1, 0)[:, None], -1)[:, 0]
  return Rollouts(
      truncated=(length > 0) & ~_is_stop(call, last, match),
      problem_id=prompts.problem_id[requests.prompt],
      sample=requests.sample,
      policy_step=jnp.full((n,), policy_step, jnp.int32),
      **rows)


def sharded_generate(
    mesh: Mesh,
    params: transformer.Params,
    queue: Queue,
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
    queue: prompts [shards * P, ...] and requests [shards * R, ...], shard by
      shard; `prompt` is a row among the shard's own P prompts; `count` is
      [shards], and so is `max_steps` if there is one.
    key: as in `generate`, the same on every shard.
    sampling: scalars that shape the distribution.
    policy_step: int32 scalar, recorded in the rollouts.
    cfg: the model.
    sampler: static choices, for each shard.

  Returns:
    Rollouts [shards * R, ...] and statistics [shards].
  """
  def local(params, queue, key, sampling, policy_step):
    limit = queue.max_steps
    rollouts, stats = generate(
        params, queue._replace(
            count=queue.count[0], max_steps=limit if limit is None else limit[0]
        ), key, sampling, policy_step, cfg=cfg, sampler=sampler)
    return rollouts, jax.tree.map(lambda x: x[None], stats)

  # Manual over the data axes: the partitioner would make the loops of all
  # shards run in step, as long as the longest, with collectives in each turn.
  axes = ('data', 'fsdp')
  rows = P(axes)
  return jax.shard_map(
      local, mesh=mesh, axis_names=set(axes),
      in_specs=(P(), rows, P(), P(), P()), out_specs=rows, check_vma=False)(
          params, queue, key, sampling, policy_step)
