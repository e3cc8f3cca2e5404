"""Prefixes of prompts, kept once for all slots, and attention over them.

Each prompt that some slot uses has a seat in a pool, and each slot has the
number of its prompt's seat. The prompt in a seat may be replaced only while no
slot has its number: a prefill of other prompts cannot change the prefix that a
slot reads. There are as many seats as slots, or as prompts if those are fewer,
so that a free slot always finds one.

A decode step multiplies the queries of all slots by the keys of one prompt, and
masks the slots of the others: a product that reads memory once for all slots
instead of once for each. Attention over the slots' own columns then continues
the same softmax, see `kv_cache.Sums`.
"""

from flax import struct
import jax
import jax.numpy as jnp

from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import decode, kv_cache

Array = jax.Array


@struct.dataclass
class PrefixPool:
  """The prefixes in use.

  Attributes:
    caches: keys and values of U seats, and of the columns of a prompt.
    prompt: [U] int32, the prompt in each seat; -1 for none.
    seat: [S] int32, seat of each slot's prompt; U for none.
  """
  caches: decode.Caches
  prompt: Array
  seat: Array


@struct.dataclass
class View:
  """View of a pool by the slots at one decode step.

  A tile is a chunk of columns of one seat.

  Attributes:
    seat: [S] int32, seat of each slot's prompt.
    length: [S] int32, prefix columns that each slot sees.
    ahead: [S] int32, distance in positions from column 0 to the slot's token.
    tiles: [U * C / chunk] int32 or None, tiles, the needed ones first.
    used: int32 scalar or None, number of `tiles` that some slot needs.
    chunk: columns to read at a time, of one seat in use; None for all columns
      of all seats at once.
  """
  seat: Array
  length: Array
  ahead: Array
  tiles: Array | None = None
  used: Array | None = None
  chunk: int | None = struct.field(pytree_node=False, default=None)


def shared(
    choice: bool | None, platform: str, *, slots: int, prompts: int,
    samples: int, chunk: int | None) -> bool:
  """Returns whether slots share the prefixes of their prompts.

  Args:
    choice: the user's; None for where it is faster.
    platform: of the devices.
    slots: decode slots.
    prompts: most prompts of a call.
    samples: least requests for each prompt.
    chunk: columns to read at a time; None for all prompts in the pool at once.
  """
  if choice is not None:
    return choice
  # Each prompt's product has the queries of all slots, and takes the time of
  # several slots' own. A CPU is bound by arithmetic.
  read = min(slots, prompts)
  if chunk is not None:
    read = min(read, -(-slots // samples) + 1)
  if platform == 'gpu':
    # On an H100: 8 prompts gain 8% with 512 slots and lose 5% with 64; 32 lose
    # 19% with 256, since the scores of all prompts pass through memory.
    return read <= 16 and 16 * read <= slots
  return platform != 'cpu' and 4 * read <= slots


def empty(
    slots: int, prompts: int, columns: int, *, cfg: ModelConfig, unroll: bool,
    kv: str | None = None) -> PrefixPool:
  """Makes a pool without prompts.

  Args:
    slots: S.
    prompts: number of prompts that may come.
    columns: C, prefix columns of a prompt.
    cfg: the model.
    unroll: whether each layer has a cache of its own.
    kv: quantised type, a key of `quantise.TYPES`; None for the compute type.
  """
  seats = min(slots, prompts)
  return PrefixPool(
      decode.empty(seats, columns, cfg=cfg, unroll=unroll, kv=kv),
      jnp.full((seats,), -1, jnp.int32), jnp.full((slots,), seats, jnp.int32))


def leave(pool: PrefixPool, slots: Array) -> PrefixPool:
  """Frees the seats of the slots [S] bool whose responses have ended."""
  return pool.replace(seat=jnp.where(slots, len(pool.prompt), pool.seat))


def take(
    pool: PrefixPool, slot: Array, prompt: Array, source: decode.Caches,
    row: Array) -> PrefixPool:
  """Gives a slot the seat of its prompt, or a free one with the prompt's copy.

  Args:
    pool: the pool; the slot has no seat.
    slot: int32 scalar.
    prompt: int32 scalar; -1 leaves the slot without a seat.
    source: prefilled prompts.
    row: int32 scalar, the prompt's row in `source`.

  Returns:
    The new pool.
  """
  seats = len(pool.prompt)
  free = jnp.all(pool.seat != jnp.arange(seats)[:, None], -1)
  here = pool.prompt == prompt
  new = (prompt >= 0) & ~jnp.any(here)
  seat = jnp.where(new, jnp.argmax(free), jnp.argmax(here))
  # A loop of one turn or none: XLA gives a conditional a copy of the pool. The
  # name tells compile_check how often it runs.
  with jax.named_scope('new_prompt'):
    caches = jax.lax.fori_loop(
        0, new.astype(jnp.int32),
        lambda _, caches: decode.copy_slot(caches, seat, source, row),
        pool.caches)
  now = jnp.where(new, prompt, pool.prompt[seat])
  return PrefixPool(
      caches, pool.prompt.at[seat].set(now),
      pool.seat.at[slot].set(jnp.where(prompt >= 0, seat, seats)))


def view(
    pool: PrefixPool, length: Array, position: Array, alive: Array, *,
    columns: int, chunk: int | None = None) -> View:
  """Computes the view of the prefixes that slots have at one decode step.

  Args:
    pool: the pool.
    length: [S] int32, prefix columns of each slot's prompt.
    position: [S] int32, response position of each slot, from 0.
    alive: [S] bool, slots whose next token matters.
    columns: C, columns of a seat.
    chunk: columns to read at a time (divides C), of one seat in use; None for
      all columns of all seats at once.
  """
  tiles = used = None
  if chunk is not None:
    # A slot that has ended reads nothing, but its seat is not free until the
    # next refill.
    sits = pool.seat == jnp.arange(len(pool.prompt))[:, None]
    longest = jnp.max(jnp.where(sits & alive, length, 0), -1)
    needed = jnp.ravel(jnp.arange(0, columns, chunk) < longest[:, None])
    tiles = jnp.argsort(~needed, stable=True).astype(jnp.int32)
    used = jnp.sum(needed)
  return View(pool.seat, length, length + position, tiles, used, chunk)


def attend(
    caches: kv_cache.Cache,
    layer: Array | None,
    q: Array,
    window: Array | int,
    *,
    seen: View,
    cfg: ModelConfig,
) -> kv_cache.Sums:
  """Computes the sums of attention over the slots' prefixes.

  Args:
    caches: keys and values of the seats.
    layer: index into the leading axis of `caches`; None if it has none.
    q: [S, H, h] rotated queries.
    window: positions a query may look back, itself included.
    seen: view of the prefixes.
    cfg: the model.

  Returns:
    The sums of every slot, to be continued by `kv_cache.attend`.
  """
  seats, groups, h, columns = caches.k.shape[-4:]
  # The axis of KV heads first: one product for each over all slots. A product
  # for each slot would read its prompt's keys again.
  q = q.reshape(len(q), groups, -1, h).swapaxes(0, 1)

  def add(sums, seat, count, column, n):
    """Adds n columns of `count` seats."""
    part = kv_cache.read(caches, layer, column, n, (seat, count))
    back = seen.ahead[:, None] - (column + jnp.arange(n))
    visible = (back < window) & (column + jnp.arange(n) < seen.length[:, None])
    visible = visible[:, None] & (
        seen.seat[:, None] == seat + jnp.arange(count))[..., None]
    s = jnp.einsum(
        'ksgh,ukhc->ksguc', q, part.k.astype(q.dtype),
        preferred_element_type=jnp.float32)
    scale = lambda x: x.swapaxes(0, 1)[:, None, None]
    s = kv_cache.logits(
        s, None if part.k_scale is None else scale(part.k_scale),
        visible[:, None], cfg)

    def values(weights):
      weights = weights.reshape(s.shape)
      if part.v_scale is not None:
        weights *= scale(part.v_scale)
      return jnp.einsum(
          'ksguc,ukch->ksgh', weights.astype(q.dtype), part.v.astype(q.dtype),
          preferred_element_type=jnp.float32)

    return kv_cache.add(sums, s.reshape(*s.shape[:3], -1), values)

  sums, chunk = kv_cache.no_sums(q.shape), seen.chunk
  if chunk is None:
    sums = add(sums, 0, seats, 0, columns)
  else:
    per_seat = columns // chunk
    with jax.named_scope('prefixes'):
      sums = jax.lax.fori_loop(
          0, seen.used, lambda i, sums: add(
              sums, seen.tiles[i] // per_seat, 1,
              seen.tiles[i] % per_seat * chunk, chunk), sums)
  return kv_cache.Sums(*(x.swapaxes(0, 1) for x in sums))
