"""The queue of requests, the state of the decode loop, and the refill of slots.

Shapes: R requests, S slots, P prompts, T the longest response.
"""

from typing import NamedTuple

from flax import struct
import jax
import jax.numpy as jnp

from jaxrl_llm.sampling import decode, prefixes
from jaxrl_llm.sampling.config import SamplerConfig
from jaxrl_llm.types import Prompts, Requests

Array = jax.Array


class Queue(NamedTuple):
  """Requests to serve, in this order.

  Attributes:
    prompts: P prompts; rows of length 0 are filler.
    requests: R requests. With several prefills, requests of one prompt should
      be adjacent: each run of them prefills the prompt again.
    count: int32 scalar, requests to serve, at most R.
  """
  prompts: Prompts
  requests: Requests
  count: Array


class Lookup(NamedTuple):
  """Arrays that the decode loop looks up by the request in a slot.

  Row R stands for no request. Without it, each look-up for an idle slot would
  need a mask.

  Attributes:
    prompt: [R + 1] int32, row of its prompt.
    budget: [R + 1] int32, response tokens allowed, at most T.
    prompt_length: [R + 1] int32, tokens of its prompt.
    last_token: [R + 1] int32, the last of them.
    noise: [R + 1, T] float32, uniform in [0, 1), one number for each token.
  """
  prompt: Array
  budget: Array
  prompt_length: Array
  last_token: Array
  noise: Array


@struct.dataclass
class State:
  """State of the decode loop.

  Attributes:
    step: int32 scalar, decode steps done.
    served: int32 scalar, requests taken from the queue.
    busy: int32 scalar, slots that produced a token, summed over the steps.
    request: [S] int32, request in each slot; R for none.
    alive: [S] bool, whether the slot's response is unfinished.
    token: [S] int32, the token to feed next.
    position: [S] int32, response tokens so far.
    start: [S] int32, first decode step of the slot's request.
    caches: keys and values.
    pool: the prompts' prefixes, if the slots share them; else None.
    ring: tokens and statistics of the latest steps, each array [ring, ..., S];
      each step writes one row, as in the cache.
    rows: finished responses, each array [R + 1, ..., T]; row R is filler.
      'experts' is [R + 1, L + T, E], with those of the prompt.
    match: [S] int32, state of the automaton of the texts that end a response;
      None if there are none.
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
  pool: prefixes.Pool | None
  ring: dict[str, Array]
  rows: dict[str, Array]
  match: Array | None = None


def lookup(queue: Queue, key: Array, max_response: int) -> Lookup:
  """Makes the look-up of a queue's requests; `key` is the step's PRNG key."""
  prompts, requests, _ = queue
  pad = lambda x: jnp.pad(x, (0, 1))
  prompt = pad(requests.prompt)
  budget = pad(jnp.minimum(requests.budget, max_response))
  prompt_length = jnp.maximum(prompts.length[prompt], 1)
  last_token = prompts.tokens[prompt, prompt_length - 1]
  return Lookup(prompt, budget, prompt_length, last_token, noise(
      key, prompts.problem_id[prompt], pad(requests.sample), max_response))


def noise(key: Array, problem: Array, sample: Array, length: int) -> Array:
  """Draws uniform noise [R, length] from key, problem [R] and sample [R]."""
  # By the names of problem and sample, never by slot or place in the queue: a
  # request has the same tokens in any company, on any number of devices.
  keys = jax.vmap(
      lambda p, s: jax.random.fold_in(jax.random.fold_in(key, p), s))(
          problem, sample)
  return jax.vmap(lambda k: jax.random.uniform(k, (length,)))(keys)


def runs(prompt: Array, count: Array) -> Array:
  """Numbers the runs of adjacent requests with equal prompts.

  Args:
    prompt: [R] int32, prompt of each request.
    count: int32 scalar, requests to serve.

  Returns:
    [R + 1] int32, each request's run, from 0. Requests from `count` on have the
    number of the last run.
  """
  new = jnp.pad(prompt[1:] != prompt[:-1], 1, constant_values=True)
  return jnp.cumsum(new & (jnp.arange(len(new)) < count)) - 1


def empty(
    requests: int, caches: decode.Caches, pool: prefixes.Pool | None,
    sampler: SamplerConfig, experts: Array | None = None) -> State:
  """Makes the initial state: all slots idle, no request served.

  Args:
    requests: R.
    caches: keys and values of the slots.
    pool: the prompts' prefixes, if the slots share them; else None.
    sampler: static choices.
    experts: of a prompt, [L, E] of any value; None if they are not recorded.

  Returns:
    The state before the first step.
  """
  slots, texts = sampler.slots, sampler.stop_texts is not None
  zero = jnp.zeros((), jnp.int32)
  kinds = dict(
      tokens=((), jnp.int32), logprobs=((), jnp.float32),
      entropy=((), jnp.float32))
  if sampler.tempered:
    kinds.update(tempered_logprobs=((), jnp.float32))
  if sampler.top_logprobs:
    k = (sampler.top_logprobs,)
    kinds.update(top_ids=(k, jnp.int32), top_logprobs=(k, jnp.float32))
  rows = {
      name: jnp.zeros((requests + 1, *extra, sampler.max_response), kind)
      for name, (extra, kind) in kinds.items()}
  for name in ('length', *['match'] * texts):
    rows[name] = jnp.zeros((requests + 1,), jnp.int32)
  if experts is not None:
    columns, width = experts.shape
    kinds.update(experts=((width,), experts.dtype))
    rows['experts'] = jnp.zeros(
        (requests + 1, columns + sampler.max_response, width), experts.dtype)
  per_slot = jnp.zeros((slots,), jnp.int32)
  # Steps write to the ring, and a response moves to its row once, when it has
  # ended: a scatter into the rows at each step would copy all of them.
  # After a response ends, up to steps_per_refill - 1 steps still write to it.
  ring = sampler.max_response + sampler.steps_per_refill - 1
  return State(
      step=zero, served=zero, busy=zero,
      request=jnp.full((slots,), requests, jnp.int32),
      alive=jnp.zeros((slots,), bool),
      token=per_slot, position=per_slot, start=per_slot,
      caches=caches, pool=pool,
      ring={name: jnp.zeros((ring, *extra, slots), kind)
            for name, (extra, kind) in kinds.items()},
      rows=rows, match=per_slot if texts else None)


def store(
    rows: dict[str, Array], state: State, slot: Array,
    first: Array) -> dict[str, Array]:
  """Copies a slot's response from the ring into its request's row.

  Args:
    rows: the rows to update; `state.rows` is ignored.
    state: state whose ring holds the response.
    slot: int32 scalar.
    first: int32 scalar, place of the last token of the request's prompt, which
      its first step fed.

  Returns:
    The new rows.
  """
  # The ring's rows of this request begin at its first step and wrap around.
  t = jnp.arange(rows['tokens'].shape[1])
  steps = (state.start[slot] + t) % state.ring['tokens'].shape[0]
  length = state.position[slot]

  def row(buffer):
    x = jnp.moveaxis(buffer[steps, ..., slot], 0, -1)
    return jnp.where(t < length, x, 0)

  new = dict(
      {name: row(x) for name, x in state.ring.items()}, length=length)
  if state.match is not None:
    new.update(match=state.match[slot])
  if 'experts' in rows:
    # Behind those of the prompt, which the refill has written.
    of_request = rows['experts'][state.request[slot]]
    new['experts'] = jax.lax.dynamic_update_slice_in_dim(
        of_request, new['experts'].T, first, 0)
  return {
      name: jax.lax.dynamic_update_index_in_dim(
          x, new[name], state.request[slot], 0)
      for name, x in rows.items()}


class Prefilled(NamedTuple):
  """Prompts whose keys and values exist now.

  Attributes:
    caches: their keys and values.
    row: [R + 1] int32, row in `caches` of each request's prompt.
    ready: [R + 1] bool, whether it has one; if not, a later prefill makes it.
    experts: of their tokens, [P, L, E], from `experts.Record`; None if they
      are not recorded.
  """
  caches: decode.Caches
  row: Array
  ready: Array
  experts: Array | None = None


def unfinished(state: State, count: Array) -> Array:
  """Returns whether requests wait or are in slots, [] bool."""
  none = len(state.rows['length']) - 1
  return (state.served < count) | jnp.any(state.request < none)


def _of_prompt(prefilled: Prefilled, requests: Lookup, request: Array) -> Array:
  """Returns the experts [L, E] of a request's prompt but its last token."""
  experts = prefilled.experts[prefilled.row[request]]
  real = jnp.arange(len(experts)) < requests.prompt_length[request] - 1
  return jnp.where(real[:, None], experts, 0)


def refill(
    state: State, prefilled: Prefilled, requests: Lookup, count: Array,
) -> State:
  """Stores the responses that ended and gives their slots new requests."""
  none = len(requests.prompt) - 1
  ended = ~state.alive & ((state.request < none) | (state.served < count))
  rank = state.served + jnp.cumsum(ended) - ended
  taken = jnp.where(rank < count, rank, none)
  # Where a request's prompt is not ready, no later one is: none is skipped.
  ended &= prefilled.ready[taken]
  order = jnp.argsort(~ended, stable=True)
  shared = state.pool is not None

  def refill_slot(i, carry):
    held, rows = carry
    slot = order[i]
    request = taken[slot]
    rows = store(
        rows, state, slot, requests.prompt_length[state.request[slot]] - 1)
    if prefilled.experts is not None:
      rows = {**rows, 'experts': jax.lax.dynamic_update_slice(
          rows['experts'], _of_prompt(prefilled, requests, request)[None],
          (request, 0, 0))}
    if shared:
      held = prefixes.take(
          held, slot, jnp.where(request < none, requests.prompt[request], -1),
          prefilled.caches, prefilled.row[request])
    else:
      held = decode.copy_slot(
          held, slot, prefilled.caches, prefilled.row[request])
    return held, rows

  held = prefixes.leave(state.pool, ended) if shared else state.caches
  # One slot after the other, in place; a gather of all slots would copy the
  # caches whenever a single response has ended.
  with jax.named_scope('refill'):
    held, rows = jax.lax.fori_loop(
        0, jnp.sum(ended), refill_slot, (held, state.rows))
  new = lambda fresh, old: jnp.where(ended, fresh, old)
  return state.replace(
      served=jnp.minimum(state.served + jnp.sum(ended), count),
      request=new(taken, state.request),
      alive=new(taken < none, state.alive),
      token=new(requests.last_token[taken], state.token),
      position=new(0, state.position),
      start=new(state.step, state.start), rows=rows,
      match=None if state.match is None else new(0, state.match),
      **{'pool' if shared else 'caches': held})
