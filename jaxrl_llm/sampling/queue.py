"""The queue of requests, the state of the decode loop, and the refill of slots.

Shapes: R requests, S slots, P prompts, T the longest response.
"""

from typing import Callable, NamedTuple

from flax import struct
import jax
import jax.numpy as jnp

from jaxrl_llm.sampling import decode, prefixes
from jaxrl_llm.sampling.config import SamplerConfig
from jaxrl_llm.types import Prompts, Requests, Rollouts

Array = jax.Array


class Queue(NamedTuple):
  """Requests to serve, in this order.

  Attributes:
    prompts: P prompts; rows of length 0 are filler.
    requests: R requests. With several prefills, requests of one prompt should
      be adjacent: each run of them prefills the prompt again.
    count: int32 scalar, requests to serve, at most R.
    max_steps: int32 scalar, decode steps after which the call ends, whatever is
      unfinished; None for no limit.
  """
  prompts: Prompts
  requests: Requests
  count: Array
  max_steps: Array | None = None


class Existing(NamedTuple):
  """Response tokens of requests that exist already.

  Attributes:
    done: [R + 1] int32, their number.
    fed: [R + 1, C] int32, tokens to feed at the positions of the response: the
      prompt's last token, then these; C is T rounded up to whole chunks.
    match: [R + 1] int32, state of the automaton of the stop texts after them.
  """
  done: Array
  fed: Array
  match: Array


class Lookup(NamedTuple):
  """Arrays that the decode loop looks up by the request in a slot.

  Row R stands for no request. Without it, each look-up for an idle slot would
  need a mask.

  Attributes:
    prompt: [R + 1] int32, row of its prompt.
    budget: [R + 1] int32, response tokens allowed, at most T.
    prompt_length: [R + 1] int32, tokens of its prompt.
    last_token: [R + 1] int32, the last token of the prompt, or of the response
      as far as it exists.
    noise: [R + 1, T] float32, uniform in [0, 1), one number for each token.
    existing: response tokens that exist already; None if no request of the run
      has any.
  """
  prompt: Array
  budget: Array
  prompt_length: Array
  last_token: Array
  noise: Array
  existing: Existing | None = None


@struct.dataclass
class DecodeState:
  """State of the decode loop.

  Attributes:
    step: int32 scalar, decode steps done.
    served: int32 scalar, requests taken from the queue.
    busy: int32 scalar, slots that produced a token, summed over the steps.
    request: [S] int32, request in each slot; R for none.
    alive: [S] bool, whether the slot's response is unfinished.
    token: [S] int32, the token to feed next.
    position: [S] int32, response tokens so far.
    start: [S] int32, decode step of the response's first token; tokens that
      existed already count as one step each.
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
  pool: prefixes.PrefixPool | None
  ring: dict[str, Array]
  rows: dict[str, Array]
  match: Array | None = None


def lookup(queue: Queue, key: Array, sampler: SamplerConfig) -> Lookup:
  """Makes the look-up of a queue's requests.

  Args:
    queue: prompts and requests.
    key: the step's PRNG key; with `sampler.continues` the run's, from which
      each request's `birth` makes the key of its step.
    sampler: static choices.

  Raises:
    ValueError: requests have tokens that exist already, or have none, against
      `sampler.continues`.
  """
  prompts, requests, *_ = queue
  if sampler.continues == (requests.done is None):
    raise ValueError(
        f'sampler continues={sampler.continues}: give done, tokens and birth '
        'of all requests with continues=True, and none of them without.')
  max_response = sampler.max_response
  pad = lambda x: jnp.pad(x, (0, 1))
  prompt = pad(requests.prompt)
  budget = pad(jnp.minimum(requests.budget, max_response))
  prompt_length = jnp.maximum(prompts.length[prompt], 1)
  last_token = prompts.tokens[prompt, prompt_length - 1]
  existing = None
  if sampler.continues:
    existing = _existing(requests, last_token, sampler)
    last_token = jnp.take_along_axis(
        existing.fed, existing.done[:, None], -1)[:, 0]
    key = jax.vmap(jax.random.fold_in, (None, 0))(key, pad(requests.birth))
  return Lookup(prompt, budget, prompt_length, last_token, noise(
      key, prompts.problem_id[prompt], pad(requests.sample), max_response),
                existing)


def _existing(
    requests: Requests, last_token: Array, sampler: SamplerConfig) -> Existing:
  """Makes `Existing`; `last_token` [R + 1] is that of the prompts."""
  length = sampler.max_response
  whole = -(-length // sampler.continue_chunk) * sampler.continue_chunk
  fed = jnp.pad(requests.tokens[:, :-1], ((0, 1), (1, whole - length)))
  pad = lambda x: jnp.pad(x, (0, 1))
  match = requests.match
  return Existing(
      pad(requests.done), fed.at[:, 0].set(last_token),
      jnp.zeros_like(last_token) if match is None else pad(match))


def noise(key: Array, problem: Array, sample: Array, length: int) -> Array:
  """Draws uniform noise.

  Args:
    key: PRNG key, or [R] of them.
    problem: [R] int32.
    sample: [R] int32.
    length: numbers for each.

  Returns:
    [R, length] float32.
  """
  # By the names of problem and sample, never by slot or place in the queue: a
  # request has the same tokens in any company, on any number of devices.
  keys = jax.vmap(
      lambda k, p, s: jax.random.fold_in(jax.random.fold_in(k, p), s),
      (0 if key.ndim else None, 0, 0))(key, problem, sample)
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
    requests: int, caches: decode.Caches, pool: prefixes.PrefixPool | None,
    sampler: SamplerConfig, experts: Array | None = None) -> DecodeState:
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
  chosen = dict(
      tempered_logprobs=sampler.tempered, top_ids=sampler.top_logprobs,
      top_logprobs=sampler.top_logprobs)
  kinds = {
      name: ((sampler.top_logprobs,) * ('K' in column.axes), column.type)
      for name, column in Rollouts.declared.items()
      if column.axes[-1:] == 'T' and chosen.get(name, not column.maker)}
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
  return DecodeState(
      step=zero, served=zero, busy=zero,
      request=jnp.full((slots,), requests, jnp.int32),
      alive=jnp.zeros((slots,), bool),
      token=per_slot, position=per_slot, start=per_slot,
      caches=caches, pool=pool,
      ring={name: jnp.zeros((ring, *extra, slots), kind)
            for name, (extra, kind) in kinds.items()},
      rows=rows, match=per_slot if texts else None)


def store(
    rows: dict[str, Array], state: DecodeState, slot: Array,
    requests: Lookup) -> dict[str, Array]:
  """Copies a slot's response from the ring into its request's row.

  Args:
    rows: the rows to update; `state.rows` is ignored.
    state: state whose ring holds the response.
    slot: int32 scalar.
    requests: look-up by the request in a slot.

  Returns:
    The new rows.
  """
  # The prompt's last token, which the request's first step fed.
  first = requests.prompt_length[state.request[slot]] - 1
  # The ring's rows of this request begin at its first step and wrap around.
  t = jnp.arange(rows['tokens'].shape[1])
  steps = (state.start[slot] + t) % state.ring['tokens'].shape[0]
  length = state.position[slot]
  new = t < length
  if requests.existing is not None:
    new &= t >= requests.existing.done[state.request[slot]]

  def row(buffer):
    x = jnp.moveaxis(buffer[steps, ..., slot], 0, -1)
    return jnp.where(new, x, 0)

  values = dict(
      {name: row(x) for name, x in state.ring.items()}, length=length)
  if state.match is not None:
    values.update(match=state.match[slot])
  if 'experts' in rows:
    # Behind those of the prompt, which the refill has written.
    of_request = rows['experts'][state.request[slot]]
    values['experts'] = jax.lax.dynamic_update_slice_in_dim(
        of_request, values['experts'].T, first, 0)
  return {
      name: jax.lax.dynamic_update_index_in_dim(
          x, values[name], state.request[slot], 0)
      for name, x in rows.items()}


def store_all(state: DecodeState, requests: Lookup) -> DecodeState:
  """Stores the responses of all slots, as far as they are, at a call's end."""
  busy = state.request < len(requests.prompt) - 1
  order = jnp.argsort(~busy, stable=True)
  with jax.named_scope('unfinished'):
    return state.replace(rows=jax.lax.fori_loop(
        0, jnp.sum(busy),
        lambda i, rows: store(rows, state, order[i], requests), state.rows))


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


def unfinished(state: DecodeState, queue: Queue) -> Array:
  """Returns whether requests wait or are in slots, and may go on, [] bool."""
  none = len(state.rows['length']) - 1
  some = (state.served < queue.count) | jnp.any(state.request < none)
  return some if queue.max_steps is None else some & (
      state.step < queue.max_steps)


def _of_prompt(prefilled: Prefilled, requests: Lookup, request: Array) -> Array:
  """Returns the experts [L, E] of a request's prompt but its last token.

  Zeros if the response has a beginning, with which they were recorded.
  """
  experts = prefilled.experts[prefilled.row[request]]
  real = jnp.arange(len(experts)) < requests.prompt_length[request] - 1
  if requests.existing is not None:
    real &= requests.existing.done[request] == 0
  return jnp.where(real[:, None], experts, 0)


def refill(
    state: DecodeState, prefilled: Prefilled, requests: Lookup, count: Array,
    extend: Callable[..., decode.Caches] | None = None) -> DecodeState:
  """Stores the responses that ended and gives their slots new requests.

  Args:
    state: the state before.
    prefilled: prompts of the requests that may come.
    requests: look-up by the request in a slot.
    count: int32 scalar, requests to serve.
    extend: (caches, slot, request) -> caches with the response as far as it
      exists; None if no request has a part of one.

  Returns:
    The state, in which these slots are at the first step of their requests.
  """
  none = len(requests.prompt) - 1
  ended = ~state.alive & ((state.request < none) | (state.served < count))
  rank = state.served + jnp.cumsum(ended) - ended
  taken = jnp.where(rank < count, rank, none)
  # Where a request's prompt is not ready, no later one is: none is skipped.
  ended &= prefilled.ready[taken]
  order = jnp.argsort(~ended, stable=True)
  shared = state.pool is not None

  def refill_slot(i, carry):
    caches, pool, rows = carry
    slot = order[i]
    request = taken[slot]
    rows = store(rows, state, slot, requests)
    if prefilled.experts is not None:
      rows = {**rows, 'experts': jax.lax.dynamic_update_slice(
          rows['experts'], _of_prompt(prefilled, requests, request)[None],
          (request, 0, 0))}
    if shared:
      pool = prefixes.take(
          pool, slot, jnp.where(request < none, requests.prompt[request], -1),
          prefilled.caches, prefilled.row[request])
    else:
      caches = decode.copy_slot(
          caches, slot, prefilled.caches, prefilled.row[request])
    if extend is not None:
      caches = extend(caches, slot, request)
    return caches, pool, rows

  # A loop carries only what it changes.
  still = shared and extend is None
  pool = prefixes.leave(state.pool, ended) if shared else None
  # One slot after the other, in place; a gather of all slots would copy the
  # caches whenever a single response has ended.
  with jax.named_scope('refill'):
    caches, pool, rows = jax.lax.fori_loop(
        0, jnp.sum(ended), refill_slot,
        (None if still else state.caches, pool, state.rows))
  new = lambda fresh, old: jnp.where(ended, fresh, old)
  existing = requests.existing
  done = 0 if existing is None else existing.done[taken]
  match = 0 if existing is None else existing.match[taken]
  return state.replace(
      served=jnp.minimum(state.served + jnp.sum(ended), count),
      request=new(taken, state.request),
      alive=new(taken < none, state.alive),
      token=new(requests.last_token[taken], state.token),
      position=new(done, state.position),
      start=new(state.step - done, state.start), rows=rows, pool=pool,
      caches=state.caches if still else caches,
      match=None if state.match is None else new(match, state.match))
