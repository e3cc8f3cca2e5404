"""State of the decode loop of `generate.py`, and functions of the queue."""

from flax import struct
import jax
import jax.numpy as jnp

from jaxrl_llm.sampling import decode, prefixes

Array = jax.Array


@struct.dataclass
class State:
  """State of the decode loop.

  Attributes:
    step: int32 scalar, decode steps done.
    served: int32 scalar, requests taken from the queue.
    busy: int32 scalar, see `generate.SamplerStats`.
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
    match: [S] int32, state of the texts that end a response, see `stops`; None
      if there are none.
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


def noise(key: Array, problem: Array, sample: Array, length: int) -> Array:
  """Draws uniform noise [R, length] from key, problem [R] and sample [R]."""
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
    requests: int, slots: int, caches: decode.Caches,
    pool: prefixes.Pool | None = None, *, max_response: int,
    steps_per_refill: int, top_logprobs: int, tempered: bool,
    texts: bool = False) -> State:
  """Makes the initial state: all slots idle, no request served.

  Args:
    requests: R.
    slots: S.
    caches: keys and values of the slots.
    pool: see `State`.
    max_response: see `generate.SamplerConfig`.
    steps_per_refill: see `generate.SamplerConfig`.
    top_logprobs: see `generate.SamplerConfig`.
    tempered: see `generate.SamplerConfig`.
    texts: whether texts end responses.

  Returns:
    The state before the first step.
  """
  zero = jnp.zeros((), jnp.int32)
  kinds = dict(
      tokens=((), jnp.int32), logprobs=((), jnp.float32),
      entropy=((), jnp.float32))
  if tempered:
    kinds.update(tempered_logprobs=((), jnp.float32))
  if top_logprobs:
    k = (top_logprobs,)
    kinds.update(top_ids=(k, jnp.int32), top_logprobs=(k, jnp.float32))
  rows = {
      name: jnp.zeros((requests + 1, *extra, max_response), kind)
      for name, (extra, kind) in kinds.items()}
  for name in ('length', *['match'] * texts):
    rows[name] = jnp.zeros((requests + 1,), jnp.int32)
  per_slot = jnp.zeros((slots,), jnp.int32)
  # After a response ends, up to steps_per_refill - 1 steps still write rows.
  ring = max_response + steps_per_refill - 1
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
    rows: dict[str, Array], state: State, slot: Array) -> dict[str, Array]:
  """Copies a slot's response from the ring into its request's row.

  Args:
    rows: the rows to update; `state.rows` is ignored.
    state: state whose ring holds the response.
    slot: int32 scalar.

  Returns:
    The new rows.
  """
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
  return {
      name: jax.lax.dynamic_update_index_in_dim(
          x, new[name], state.request[slot], 0)
      for name, x in rows.items()}
