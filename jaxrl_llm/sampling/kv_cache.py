"""The decode-time key/value cache, and attention over it.

A slot's columns are its prompt's prefix, copied when the slot is refilled, and
a ring that holds its response. If slots share prefixes, they have the ring
alone, and `prefixes.py` attends to the rest. At each step all slots write the
same ring column, whatever their own position: one in-place slice update instead
of a scatter. A slot at response position t owns the t + 1 latest ring columns;
older columns belong to earlier requests and are masked. Rotary embeddings use
true positions, so the place of a key in the ring does not matter.

The cache may be quantised, with a scale for each slot, head and column. Then
the attention scores are multiplied by the scales of the keys, and the softmax
weights by those of the values: no dequantised cache exists.
"""

from typing import Any, Callable, NamedTuple

from flax import struct
import jax
from jax.experimental import layout
import jax.numpy as jnp

from jaxrl_llm.models import attention
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import quantise

Array = jax.Array

_OUTSIDE = 1 << 30  # Further back than any layer's window.
# Score of a column that a slot does not see. With -inf, the difference of the
# scores of two such columns would be NaN.
_MASKED = -1e30


class Cache(NamedTuple):
  """Keys and values of one layer, or of all layers on a leading axis.

  C is the number of prefix and ring columns. The order of the axes fits the two
  products of attention, so that no step transposes the cache.

  Attributes:
    k: [(layers,) S, KV, h, C] rotated keys.
    v: [(layers,) S, KV, C, h] values.
    k_scale: [(layers,) S, KV, C] float32, scales of quantised keys; None if
      they are not quantised.
    v_scale: [(layers,) S, KV, C] float32 or None, scales of the values.
  """
  k: Array
  v: Array
  k_scale: Array | None = None
  v_scale: Array | None = None


@struct.dataclass
class CacheColumns:
  """The columns that each slot sees and writes at one decode step.

  Attributes:
    write: int32 scalar, the column that this step writes.
    back: [S, C] int32, distance in positions from the slot's current token back
      to the column's token; very large for columns of other requests.
    chunks: [C / chunk] int32 or None, chunks of columns, the needed ones first.
    used: int32 scalar or None, number of `chunks` that some slot needs.
    chunk: columns to read at a time, with an online softmax that stops after
      the last chunk in use; None for all at once.
  """
  write: Array
  back: Array
  chunks: Array | None = None
  used: Array | None = None
  chunk: int | None = struct.field(pytree_node=False, default=None)


class Sums(NamedTuple):
  """Sums of a softmax over the columns so far, all float32.

  Attributes:
    top: [..., G] largest score.
    total: [..., G] sum of exp(score - top).
    out: [..., G, h] sum of exp(score - top) times the values.
  """
  top: Array
  total: Array
  out: Array


# Axes of the columns and of the slots of each array.
_COLUMN_AXES = Cache(k=-1, v=-2, k_scale=-1, v_scale=-1)
_SLOT_AXES = Cache(k=-4, v=-4, k_scale=-3, v_scale=-3)


def _each(function: Callable[..., Array], cache: Cache, *others: Any) -> Cache:
  """Applies a function to each array of a cache, with those of others."""
  return Cache(*(
      x if x is None else function(x, *more)
      for x, *more in zip(cache, *others)))


def make_cache(k: Array, v: Array, dtype: jnp.dtype | None) -> Cache:
  """Makes a cache of keys and values.

  Args:
    k: [..., KV, h, C] rotated keys.
    v: [..., KV, C, h] values.
    dtype: quantised type, a value of `quantise.TYPES`; None keeps the arrays.

  Returns:
    The cache.
  """
  if dtype is None:
    return Cache(k, v)
  k, k_scale = quantise.quantise(k, dtype, axis=-2)
  v, v_scale = quantise.quantise(v, dtype, axis=-1)
  return Cache(k, v, k_scale, v_scale)


def columns(
    step: Array,
    position: Array,
    prefix_length: Array,
    *,
    prefix: int,
    ring: int,
    chunk: int | None = None,
) -> CacheColumns:
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
    return CacheColumns(prefix + here, back)
  # The chunks in use must be the first ones: a loop stops after them, and all
  # slots share it. Prefix chunks come in order, then the ring's from the
  # current one backwards, as far as the longest response so far.
  prefixes = -(-jnp.max(prefix_length) // chunk)
  oldest = here - jnp.max(position)
  rings = jnp.minimum(here // chunk - oldest // chunk + 1, ring // chunk)
  i = jnp.arange((prefix + ring) // chunk)
  ring_chunk = (here // chunk - (i - prefixes)) % (ring // chunk)
  chunks = jnp.where(i < prefixes, i, prefix // chunk + ring_chunk)
  return CacheColumns(prefix + here, back, chunks, prefixes + rings, chunk)


def no_sums(shape: tuple[int, ...]) -> Sums:
  """Returns the sums over no columns, for queries of a shape [..., G, h]."""
  return Sums(
      jnp.full(shape[:-1], _MASKED), jnp.zeros(shape[:-1]), jnp.zeros(shape))


def add(
    sums: Sums, scores: Array, values: Callable[[Array], Array]) -> Sums:
  """Adds columns to the sums of a softmax.

  Args:
    sums: the sums so far.
    scores: [..., G, C] float32, from `logits`.
    values: weights [..., G, C] -> their sum of the values [..., G, h], float32.

  Returns:
    The new sums.
  """
  top = jnp.maximum(sums.top, scores.max(-1))
  # Masked columns before the first visible one vanish: exp(-1e30 - top) = 0.
  shrink = jnp.exp(sums.top - top)
  weights = jnp.exp(scores - top[..., None])
  return Sums(top, sums.total * shrink + weights.sum(-1),
              sums.out * shrink[..., None] + values(weights))


def logits(
    products: Array, k_scale: Array | None, visible: Array,
    cfg: ModelConfig) -> Array:
  """Makes scores of the products of queries and stored keys, in float32."""
  if k_scale is not None:
    products *= k_scale
  s = attention.softcap(products * cfg.scale, cfg.attention_softcap)
  return jnp.where(visible, s, _MASKED)


def read(
    cache: Cache, layer: Array | None, column: Array | int, n: int,
    rows: tuple[Array | int, int] | None = None) -> Cache:
  """Reads columns of one layer.

  Args:
    cache: of one layer, or of all layers on a leading axis.
    layer: index into the leading axis; None if it has no such axis.
    column: the first column.
    n: number of columns.
    rows: the first row and the number of rows; None for all.
  """
  def part(x, axis):
    start, size = _start(x, layer, axis, column), list(x.shape)
    size[axis] = n
    if layer is not None:
      size[0] = 1
    if rows is not None:
      row = 0 if layer is None else 1
      start[row], size[row] = rows
    x = jax.lax.dynamic_slice(x, start, size)
    return x if layer is None else x[0]

  return _each(part, cache, _COLUMN_AXES)


def _start(x, layer, axis, column) -> list:
  """Returns the start of a column, or of columns, in an array."""
  start = [0] * x.ndim
  start[axis] = column
  if layer is not None:
    start[0] = layer
  return start


def write(
    cache: Cache, layer: Array | None, k: Array, v: Array, column: Array,
) -> Cache:
  """Writes the keys and values of successive tokens of every slot.

  Args:
    cache: keys and values so far.
    layer: index into the cache's leading axis; None if it has no such axis.
    k: [S, KV, h, n] rotated keys.
    v: [S, KV, n, h] values.
    column: int32 scalar, that of the first of them, the same for all slots.

  Returns:
    The new cache.
  """
  # One slice for all slots: XLA updates it in place. With a column for each
  # slot it would be a scatter, which copies the cache.
  def put(x, new, axis):
    return jax.lax.dynamic_update_slice(
        x, new if layer is None else new[None],
        _start(x, layer, axis, column))

  new = make_cache(k, v, None if cache.k_scale is None else cache.k.dtype)
  return _each(put, cache, new, _COLUMN_AXES)


def _in_order(x: Array) -> Array:
  """Returns x, whose axes stay in their order in memory."""
  # A TPU's compiler prefers another order for keys that a chunk computes. It
  # would convert all slots' keys to it, and back, whenever a slot is refilled.
  return layout.with_layout_constraint(x, layout.Layout(tuple(range(x.ndim))))


def slot_of(cache: Cache, slot: Array, columns: int) -> Cache:
  """Copies one slot, with zeros behind its columns.

  Args:
    cache: of one layer, or of all layers on a leading axis.
    slot: int32 scalar.
    columns: of the result, no fewer than those of `cache`.
  """
  def part(x, axis, slots):
    x = _in_order(jax.lax.dynamic_index_in_dim(x, slot, x.ndim + slots))
    pad = [(0, 0)] * x.ndim
    pad[axis] = 0, columns - x.shape[axis]
    return jnp.pad(x, pad)

  return _each(part, cache, _COLUMN_AXES, _SLOT_AXES)


def put_ring(
    cache: Cache, layer: Array | None, slot: Array, source: Cache,
    first: Array, start: Array, *, prefix: int) -> Cache:
  """Writes one layer of a slot's ring.

  Args:
    cache: keys and values of the slots.
    layer: index into the caches' leading axis; None if they have no such axis.
    slot: int32 scalar.
    source: of one slot; the response in order.
    first: int32 scalar, column of `source` with the response's position 0.
    start: int32 scalar, decode step of that position, see `columns`.
    prefix: columns before the ring.

  Returns:
    The new cache.
  """
  ring = cache.v.shape[-2] - prefix

  def put(x, new, axis, slots):
    new = _in_order(jnp.roll(new, start % ring, axis))
    at = _start(x, layer, axis, prefix)
    at[slots] = slot
    return jax.lax.dynamic_update_slice(
        x, new if layer is None else new[None], at)

  return _each(put, cache, read(source, layer, first, ring), _COLUMN_AXES,
               _SLOT_AXES)


def attend(
    cache: Cache,
    layer: Array | None,
    q: Array,
    cols: CacheColumns,
    window: Array | int,
    *,
    cfg: ModelConfig,
    before: Sums | None = None,
) -> Array:
  """Attends over the cache.

  Args:
    cache: keys and values, those of this step included.
    layer: index into the cache's leading axis; None if it has no such axis.
    q: [S, H, h] rotated queries.
    cols: the columns of this step.
    window: positions a query may look back, itself included.
    cfg: the model.
    before: sums [S, KV, H / KV, ...] over columns outside of the cache, which
      are attended to as well; None for none.

  Returns:
    [S, H, h] in q's type (softmax in float32).
  """
  shape = q.shape
  q = q.reshape(len(q), cache.k.shape[-3], -1, q.shape[-1])

  def scores(part, back):
    s = jnp.einsum(
        'skgh,skhc->skgc', q, part.k.astype(q.dtype),
        preferred_element_type=jnp.float32)
    scale = None if part.k_scale is None else part.k_scale[:, :, None]
    return logits(s, scale, (back < window)[:, None, None], cfg)

  def factors(weights, part):
    """Returns both factors of the sum of the values, in q's type."""
    # Weights times scales in float32, before the cast: the product of values
    # and scales would be a dequantised cache in memory.
    if part.v_scale is not None:
      weights *= part.v_scale[:, :, None]
    return weights.astype(q.dtype), part.v.astype(q.dtype)

  if cols.chunk is None and before is None:
    part = read(cache, layer, 0, cols.back.shape[-1])
    weights = jax.nn.softmax(scores(part, cols.back))
    out = jnp.einsum('skgc,skch->skgh', *factors(weights, part))
    return out.reshape(shape)

  def add_columns(sums, start, n):
    part = read(cache, layer, start, n)
    back = jax.lax.dynamic_slice_in_dim(cols.back, start, n, axis=1)
    return add(
        sums, scores(part, back), lambda weights: jnp.einsum(
            'skgc,skch->skgh', *factors(weights, part),
            preferred_element_type=jnp.float32))

  sums = no_sums(q.shape) if before is None else before
  if cols.chunk is None:
    sums = add_columns(sums, 0, cols.back.shape[-1])
  else:
    # XLA fuses the slice of a chunk into its product. A whole layer it would
    # first copy to another place of a TPU's memory.
    with jax.named_scope('chunks'):
      sums = jax.lax.fori_loop(
          0, cols.used, lambda i, sums: add_columns(
              sums, cols.chunks[i] * cols.chunk, cols.chunk), sums)
  return finished(sums, q.dtype)


def finished(sums: Sums, dtype: jnp.dtype) -> Array:
  """Returns the attention [S, H, h] of sums [S, KV, G, ...]."""
  out = (sums.out / sums.total[..., None]).astype(dtype)
  return out.reshape(len(out), -1, out.shape[-1])


def round_up(n: int, chunk: int | None) -> int:
  """Rounds n up to a multiple of `chunk`; returns n if `chunk` is None."""
  return n if chunk is None else -(-n // chunk) * chunk
