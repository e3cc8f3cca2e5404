"""Keys and values of response tokens that exist already.

A request may have the beginning of its response: its model's earlier tokens,
and those of observations. When a slot takes it, they are computed in chunks, as
many as they need, and written into the slot's ring, as if decode steps had fed
them one by one. A chunk reads what those steps would read, with quantised keys
and values too. No logits are computed.

The chunks work on a row: the prompt's keys and values, directly followed by the
response's. A row's column is the position of its token.
"""

import jax
import jax.numpy as jnp

from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import decode, kv_cache, prefixes
from jaxrl_llm.sampling.config import SamplerConfig

Array = jax.Array


def empty(
    prompts: decode.Caches, row: Array, ring: int, sampler: SamplerConfig,
) -> decode.Caches:
  """Makes the row of a prompt, without a response.

  Args:
    prompts: keys and values of the prefilled prompts, L columns.
    row: int32 scalar, the prompt's row in `prompts`.
    ring: columns of a slot's ring.
    sampler: static choices.

  Returns:
    Caches of one slot, with columns for the prompt, the ring and whole chunks.
  """
  longest = jax.tree.leaves(prompts)[0].shape[-1]
  columns = kv_cache.round_up(longest + max(ring, kv_cache.round_up(
      sampler.max_response, sampler.continue_chunk)), sampler.chunk)
  return jax.tree.map(
      lambda cache: kv_cache.slot_of(cache, row, columns), prompts,
      is_leaf=lambda x: isinstance(x, kv_cache.Cache))


def compute(
    weights: decode.DecodeParams,
    row: decode.Caches,
    fed: Array,
    done: Array,
    prefix_length: Array,
    rope: transformer.Rope,
    *,
    cfg: ModelConfig,
    sampler: SamplerConfig,
) -> decode.Caches:
  """Computes the keys and values of the first tokens fed.

  Args:
    weights: with layers in the same form as `row`.
    row: from `empty`.
    fed: [C] int32, tokens fed at the positions of the response.
    done: int32 scalar, how many of them are needed.
    prefix_length: int32 scalar, tokens of the prompt but its last.
    rope: tables of all positions, from `transformer.rope_table`.
    cfg: the model.
    sampler: static choices.

  Returns:
    The row with the keys and values of these tokens; columns after them have
    any numbers.
  """
  chunk, read = sampler.continue_chunk, sampler.chunk
  columns = jax.tree.leaves(row)[0].shape[-1]

  def add_chunk(i, row):
    first = prefix_length + i * chunk
    position = first + jnp.arange(chunk)
    tiles = used = None
    if read is not None:
      tiles = jnp.arange(columns // read)
      used = -(-(first + chunk) // read)
    # The queries share the row as slots share a prompt.
    seen = prefixes.View(
        jnp.zeros_like(position), position + 1, position, tiles, used, read)

    def attend(q, k, v, cache, _, layer, window):
      new = kv_cache.write(
          cache, layer, k.transpose(1, 2, 0)[None], v.swapaxes(0, 1)[None],
          first)
      return kv_cache.finished(prefixes.attend(
          new, layer, q, window, seen=seen, cfg=cfg), q.dtype), new

    # The last chunk may end after the last position.
    known = jnp.minimum(position, len(rope[0]) - 1)
    return decode.apply(
        weights, row, jax.lax.dynamic_slice_in_dim(fed, i * chunk, chunk),
        [table[known] for table in rope], attend, cfg=cfg)[1]

  with jax.named_scope('continued_chunks'):
    return jax.lax.fori_loop(0, -(-done // chunk), add_chunk, row)


def put(
    caches: decode.Caches, slot: Array, row: decode.Caches,
    prefix_length: Array, start: Array, *, prefix: int) -> decode.Caches:
  """Writes the response of a row into a slot's ring.

  Args:
    caches: keys and values of the slots.
    slot: int32 scalar.
    row: from `compute`.
    prefix_length: int32 scalar, tokens of the prompt but its last.
    start: int32 scalar, decode step of the response's position 0.
    prefix: columns before the ring.

  Returns:
    The new caches.
  """
  def layer(i, caches, row):
    return kv_cache.put_ring(
        caches, i, slot, row, prefix_length, start, prefix=prefix)

  if isinstance(caches, list):
    return [layer(None, *pair) for pair in zip(caches, row)]
  # One after the other: rolling all of them takes the memory of several rows.
  return jax.lax.fori_loop(
      0, len(caches.k), lambda i, caches: layer(i, caches, row), caches)
