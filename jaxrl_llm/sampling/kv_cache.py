"""The decode-time key/value cache, and attention over it.

A slot's columns are its prompt's prefix, copied when the slot is refilled, and
a ring that holds its response. At each step all slots write the same ring
column, whatever their own position: one in-place slice update instead of a
scatter. A slot at response position t owns the t + 1 latest ring columns; older
columns belong to earlier requests and are masked. Rotary embeddings use true
positions, so the place of a key in the ring does not matter.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_llm.models import attention
from jaxrl_llm.models.config import ModelConfig

Array = jax.Array

_OUTSIDE = 1 << 30  # Further back than any layer's window.


class Cache(NamedTuple):
  """Keys and values of one layer, or of all layers on a leading axis.

  C is the number of prefix and ring columns. The order of the axes fits the two
  products of attention, so that no step transposes the cache.

  Attributes:
    k: [(layers,) S, KV, h, C] rotated keys.
    v: [(layers,) S, KV, C, h] values.
  """
  k: Array
  v: Array


class Columns(NamedTuple):
  """The columns that each slot sees and writes at one decode step.

  Attributes:
    write: int32 scalar, the column that this step writes.
    back: [S, C] int32, distance in positions from the slot's current token back
      to the column's token; very large for columns of other requests.
    chunks: [C / chunk] int32 or None, chunks of columns, the needed ones first.
    used: int32 scalar or None, number of `chunks` that some slot needs.
  """
  write: Array
  back: Array
  chunks: Array | None
  used: Array | None


def columns(
    step: Array,
    position: Array,
    prefix_length: Array,
    *,
    prefix: int,
    ring: int,
    chunk: int | None = None,
) -> Columns:
  """Computes the columns of one decode step.

  Args:
    step: int32 scalar, decode steps done so far with this cache.
    position: [S] int32, response position t of each slot, from 0.
    prefix_length: [S] int32, prefix columns in use.
    prefix: columns reserved for the prefix.
    ring: columns of the ring, more than any position.
    chunk: columns to read at a time (divides prefix and ring); None for all.

  Returns:
    The columns to write and to read.
  """
  here = step % ring
  age = (here - jnp.arange(ring)) % ring
  in_ring = jnp.where(age <= position[:, None], age, _OUTSIDE)
  col = jnp.arange(prefix)
  in_prefix = jnp.where(
      col < prefix_length[:, None], (prefix_length + position)[:, None] - col,
      _OUTSIDE)
  back = jnp.concatenate([in_prefix, in_ring], -1)
  if chunk is None:
    return Columns(prefix + here, back, None, None)
  # Prefix chunks in order, then the ring's from the current one backwards.
  prefixes = -(-jnp.max(prefix_length) // chunk)
  oldest = here - jnp.max(position)
  rings = jnp.minimum(here // chunk - oldest // chunk + 1, ring // chunk)
  i = jnp.arange((prefix + ring) // chunk)
  ring_chunk = (here // chunk - (i - prefixes)) % (ring // chunk)
  chunks = jnp.where(i < prefixes, i, prefix // chunk + ring_chunk)
  return Columns(prefix + here, back, chunks, prefixes + rings)


def attend(
    cache: Cache,
    layer: Array | None,
    q: Array,
    k: Array,
    v: Array,
    cols: Columns,
    window: Array | int,
    *,
    cfg: ModelConfig,
    chunk: int | None = None,
) -> tuple[Array, Cache]:
  """Writes this step's keys and values, then attends over the cache.

  Args:
    cache: keys and values so far.
    layer: index into the cache's leading axis; None if it has no such axis.
    q: [S, H, h] rotated queries.
    k: [S, KV, h] rotated keys.
    v: [S, KV, h] values.
    cols: the columns of this step.
    window: positions a query may look back, itself included.
    cfg: the model.
    chunk: columns to read at a time, with an online softmax that stops after
      the last chunk in use; None for all at once.

  Returns:
    [S, H, h] in q's type (softmax in float32), and the new cache.
  """
  slots, heads, h = q.shape
  groups = k.shape[1]
  q = q.reshape(slots, groups, heads // groups, h)

  def put(x, new, *start):
    if layer is not None:
      new, start = new[None], (layer, *start)
    return jax.lax.dynamic_update_slice(x, new, start)

  def get(x, start, size):
    if layer is None:
      return jax.lax.dynamic_slice(x, start, size)
    return jax.lax.dynamic_slice(x, (layer, *start), (1, *size))[0]

  cache = Cache(
      put(cache.k, k[..., None], 0, 0, 0, cols.write),
      put(cache.v, v[:, :, None], 0, 0, cols.write, 0))

  def read(start, n):
    return (get(cache.k, (0, 0, 0, start), (slots, groups, h, n)),
            get(cache.v, (0, 0, start, 0), (slots, groups, n, h)))

  def scores(keys, back):
    s = jnp.einsum(
        'skgh,skhc->skgc', q, keys, preferred_element_type=jnp.float32)
    s = attention.softcap(s * cfg.scale, cfg.attention_softcap)
    return jnp.where((back < window)[:, None, None], s, -1e30)

  if chunk is None:
    keys, values = read(0, cols.back.shape[-1])
    weights = jax.nn.softmax(scores(keys, cols.back)).astype(v.dtype)
    out = jnp.einsum('skgc,skch->skgh', weights, values)
    return out.reshape(slots, heads, h), cache

  def add_chunk(i, carry):
    top, total, out = carry
    start = cols.chunks[i] * chunk
    keys, values = read(start, chunk)
    back = jax.lax.dynamic_slice_in_dim(cols.back, start, chunk, axis=1)
    s = scores(keys, back)
    new_top = jnp.maximum(top, s.max(-1))
    # Masked columns before the first visible one vanish: exp(-1e30 - top) = 0.
    shrink = jnp.exp(top - new_top)
    weights = jnp.exp(s - new_top[..., None])
    new = jnp.einsum(
        'skgc,skch->skgh', weights.astype(v.dtype), values,
        preferred_element_type=jnp.float32)
    return (new_top, total * shrink + weights.sum(-1),
            out * shrink[..., None] + new)

  row = q.shape[:-1]
  start = (jnp.full(row, -1e30), jnp.zeros(row), jnp.zeros(q.shape))
  with jax.named_scope('chunks'):
    _, total, out = jax.lax.fori_loop(0, cols.used, add_chunk, start)
  out = (out / total[..., None]).astype(q.dtype)
  return out.reshape(slots, heads, h), cache


def round_up(n: int, chunk: int | None) -> int:
  """Rounds n up to a multiple of `chunk`; returns n if `chunk` is None."""
  return n if chunk is None else -(-n // chunk) * chunk
