"""Prompts that are computed once for all rows that share them.

A group's rows have the same prompt. Its keys and values are computed in one
pass; the rows, each from the last token of its prompt on, attend to them. In
the backward pass the gradients of the keys and values are summed over the rows,
and each prompt is computed once more, with one backward pass.

Prompts without their last token are packed into bins, several in one. The keys
and values of a limited number of bins, a wave, exist at a time, with the rows
that need them. Rows of a wave are sorted by length and split into microbatches.
Everything is planned on the device, for each data shard on its own: no mix of
lengths and groups causes a recompilation.
"""

import dataclasses
import functools
from typing import Any, Callable, NamedTuple, Sequence

import jax
import jax.numpy as jnp

from jaxrl_llm.ops import packing
from jaxrl_llm.types import Array, LearnerBatch

_LAST = jnp.iinfo(jnp.int32).max  # sorts after every number of a prompt
_WIDTH = 128  # tokens of a bin, if no prompt is longer and rows are enough


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Static sizes of a plan.

  Attributes:
    rows: rows of a microbatch on a data shard.
    columns: P, most tokens of a prompt without its last.
    width: tokens of a bin.
    widths: static lengths that bins are computed at, ascending; the last is
      `width`.
    bins: bins of a wave.
    lengths: static lengths of responses, ascending.
  """
  rows: int
  columns: int
  width: int
  widths: tuple[int, ...]
  bins: int
  lengths: tuple[int, ...]

  @classmethod
  def of(cls, rows: int, max_prompt: int, lengths: Sequence[int]) -> 'Sizes':
    """Chooses the sizes.

    A wave has about as many tokens as a microbatch of the longest rows, so that
    their keys and values take little memory beside its activations.

    Args:
      rows: see `Sizes`.
      max_prompt: L, at least 2.
      lengths: see `Sizes`.
    """
    columns = max_prompt - 1
    width = columns * max(min(_WIDTH // columns, rows), 1)
    tokens = rows * (max_prompt + lengths[-1])
    # Full bins are rare where prompts are long and few.
    widths = (width // 2, 3 * width // 4) if columns > _WIDTH else ()
    return cls(rows, columns, width, (*widths, width),
               max(tokens // width, 1), tuple(lengths))


class Plan(NamedTuple):
  """Order of the work on the B rows of a data shard.

  Attributes:
    rows: [M, size] int32, the rows of each microbatch; B for none.
    bucket: [M] int32, index of each microbatch's static length.
    first: [W + 1] int32, first microbatch of each wave.
    waves: [] int32, waves with at least one row.
    start: [B] int32, column of a row's prompt in its wave.
    length: [B] int32, tokens of a row's prompt without the last.
    tokens: [W * bins, width] int32, the packed prompts.
    positions: [W * bins, width] int32, place of each token in its prompt.
    segments: [W * bins, width] int32, the prompt of each token; -1 for none.
    filled: [W * bins] int32, tokens of each bin.
    used: [] int32, bins with at least one token.
    real: [] int32, tokens that the rows and the prompts have.
    computed: [] int32, tokens that the passes compute, with padding.
  """
  rows: Array
  bucket: Array
  first: Array
  waves: Array
  start: Array
  length: Array
  tokens: Array
  positions: Array
  segments: Array
  filled: Array
  used: Array
  real: Array
  computed: Array


def number(prompt: Array, needed: Array) -> tuple[Array, Array, Array]:
  """Numbers the distinct prompts of the needed rows from 0.

  Args:
    prompt: [B] int32, equal for rows with the same prompt.
    needed: [B] bool.

  Returns:
    [B] int32, the number of each row's prompt (B for rows not needed); [B]
    int32, a row of each number; and [] int32, how many numbers there are.
  """
  count = len(prompt)
  key = jnp.where(needed, prompt, _LAST)
  order = jnp.argsort(key, stable=True)
  key = key[order]
  first = needed[order] & jnp.append(True, key[1:] != key[:-1])
  names = jnp.cumsum(first) - 1
  numbers = jnp.full(count, count, jnp.int32).at[order].set(
      jnp.where(needed[order], names, count).astype(jnp.int32))
  row = jnp.zeros(count, jnp.int32).at[
      jnp.where(first, names, count)].set(order, mode='drop')
  return numbers, row, jnp.sum(first, dtype=jnp.int32)


def deal(batch: LearnerBatch, needed: Array, shards: int) -> Array:
  """Orders rows for data shards, each of which takes B / shards of them.

  The shards' numbers of needed rows differ by at most one. Either whole groups
  go to a shard, or rows by their lengths, which balances better and shares
  less: the order whose busiest shard has fewer tokens is taken.

  Args:
    batch: B rows; `shards` divides B.
    needed: [B] bool.
    shards: number of data shards.

  Returns:
    [B] int32, the row at each place.
  """
  count = len(needed)
  if shards == 1:
    return jnp.arange(count)
  numbers, row, _ = number(batch.prompt, needed)
  length = jnp.where(needed, batch.response_length, 0)
  before = batch.prompt_length - 1
  rank = jnp.argsort(jnp.argsort(
      -jax.ops.segment_sum(length, numbers, count), stable=True))
  turn = rank % (2 * shards)  # there and back again
  shard = jnp.append(jnp.minimum(turn, 2 * shards - 1 - turn), shards)
  rank = jnp.append(rank, count)
  by_group = jnp.lexsort((-length, rank[numbers], shard[numbers]))
  place = jnp.argsort(jnp.argsort(
      jnp.where(needed, -length, 1), stable=True))
  by_length = jnp.lexsort(
      (place, jnp.where(needed, place % shards, shards)))

  # Sorted needed row i goes to shard i * shards // some.
  some = jnp.maximum(jnp.sum(needed), 1)
  i = jnp.arange(count)
  owner = i * shards // some
  here = owner * (count // shards) + i + -owner * some // shards
  there = i < some
  taken = jnp.zeros(count, bool).at[jnp.where(there, here, count)].set(
      True, mode='drop')
  free = jnp.argsort(taken, stable=True)
  slot = jnp.where(there, here, free[jnp.maximum(i - some, 0)])

  def placed(order):
    return jnp.zeros(count, jnp.int32).at[slot].set(order)

  def cost(order):
    rows = placed(order).reshape(shards, -1)
    own, names = length[rows].sum(1), jnp.sort(numbers[rows], axis=1)
    new = (names < count) & jnp.concatenate(
        [jnp.ones((shards, 1), bool), names[:, 1:] != names[:, :-1]], 1)
    return jnp.max(own + jnp.where(new, before[row[names % count]], 0).sum(1))

  return placed(jnp.where(cost(by_group) <= cost(by_length),
                          by_group, by_length))


def plan(batch: LearnerBatch, needed: Array, sizes: Sizes) -> Plan:
  """Plans the passes over the B rows of a data shard.

  Args:
    batch: the rows.
    needed: [B] bool.
    sizes: static sizes.

  Returns:
    The plan.
  """
  count, size = len(needed), sizes.rows
  waves = -(-count // sizes.bins)
  most = -(-count // size) + waves
  numbers, row, prompts = number(batch.prompt, needed)
  there = jnp.arange(count) < prompts
  before = jnp.where(there, batch.prompt_length[row] - 1, 0)
  packed = packing.best_fit(before, sizes.width)
  owner = packing.owners(packed, before, sizes.width)
  owner = jnp.pad(owner, ((0, waves * sizes.bins - count), (0, 0)),
                  constant_values=-1)
  positions = jnp.maximum(
      jnp.arange(sizes.width) - packed.offset[owner], 0)
  tokens = batch.tokens[row[owner], positions]
  filled = jnp.sum(owner >= 0, axis=1)

  of = jnp.minimum(numbers, count - 1)
  wave = jnp.where(needed, packed.bin[of] // sizes.bins, waves)
  length = jnp.where(needed, batch.response_length, 0)
  order = jnp.lexsort((-length, wave))
  rows_of_wave = jnp.bincount(wave, length=waves)
  first_row = jnp.cumsum(rows_of_wave) - rows_of_wave
  first = jnp.append(0, jnp.cumsum(-(-rows_of_wave // size)))
  m = jnp.arange(most)
  w = jnp.minimum(jnp.searchsorted(first, m, side='right') - 1, waves - 1)
  place = first_row[w] + (m - first[w]) * size
  place = place[:, None] + jnp.arange(size)
  last = (first_row + rows_of_wave)[w]
  rows = jnp.where(
      place < last[:, None], order[jnp.minimum(place, count - 1)], count)
  longest = jnp.max(jnp.append(length, 0)[rows], 1)
  bucket = jnp.searchsorted(jnp.asarray(sizes.lengths), longest)
  computed = jnp.where(
      m < first[-1], jnp.asarray(sizes.lengths)[bucket] * size, 0)
  return Plan(
      rows, bucket, first,
      jnp.sum(rows_of_wave > 0),
      (packed.bin[of] % sizes.bins) * sizes.width + packed.offset[of],
      batch.prompt_length - 1, tokens, positions, owner, filled, packed.used,
      jnp.sum(length) + jnp.sum(before),
      jnp.sum(computed) + jnp.sum(jnp.where(
          filled > 0, jnp.asarray(sizes.widths)[_index(sizes, filled)], 0)))


def _index(sizes: Sizes, filled: Array) -> Array:
  """Returns which of the widths bins with some tokens are computed at."""
  return jnp.searchsorted(jnp.asarray(sizes.widths), filled)


def fold(
    plan: Plan, rows: Any, carry: Any, *, sizes: Sizes,
    prepare: Callable[[Callable[..., Any]], Any],
    one: Callable[..., tuple[Any, Any]],
    add: Callable[[Array, Any, Any], Any],
    finish: Callable[[Any, Any, Callable[..., Any]], Any] | None = None,
) -> Any:
  """Folds the results of `one` over the microbatches of a plan.

  Args:
    plan: of B rows.
    rows: tree of [B, ...] arrays.
    carry: initial value.
    sizes: as given to `plan`.
    prepare: (over) -> keys and values of a wave's prompts, a tuple of trees.
      over(fn, x) returns x after x = fn(x, column, tokens, positions, segments)
      for each bin; its columns are those from `column` on.
    one: (tree of [size, ...] arrays, keys and values, start [size], length
      [size], static length) -> a result; with `finish`, a pair of a result and
      the gradients of the first tree of keys and values.
    add: (rows [size], carry, result) -> next carry. A row of B is none.
    finish: (carry, gradients of the first tree of keys and values in float32,
      over) -> next carry, after the microbatches of a wave.

  Returns:
    The last carry.
  """
  def wave(w, carry):
    def over(fn, x):
      def each(b, x):
        column = (b - w * sizes.bins) * sizes.width
        content = plan.tokens[b], plan.positions[b], plan.segments[b]
        return jax.lax.switch(_index(sizes, plan.filled[b]), [
            lambda x, content, n=n: fn(x, column, *(
                y[None, :n] for y in content)) for n in sizes.widths],
                              x, content)

      with jax.named_scope('bins'):
        return jax.lax.fori_loop(
            w * sizes.bins, jnp.minimum((w + 1) * sizes.bins, plan.used), each,
            x)

    kv = prepare(over)
    grads = None
    if finish:
      grads = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), kv[0])

    def body(i, carry):
      carry, grads = carry
      mine = plan.rows[i]
      given = jax.tree.map(
          lambda x: x.at[mine].get(mode='fill', fill_value=0),
          (rows, plan.start, plan.length))
      result = jax.lax.switch(
          plan.bucket[i],
          [functools.partial(one, length=n) for n in sizes.lengths],
          given[0], kv, *given[1:])
      if finish:
        result, new = result
        grads = jax.tree.map(jnp.add, grads, new)
      return add(mine, carry, result), grads

    if alone and len(plan.start) <= sizes.rows:
      carry, grads = body(0, (carry, grads))
    else:
      with jax.named_scope('microbatches'):
        carry, grads = jax.lax.fori_loop(
            plan.first[w], plan.first[w + 1], body, (carry, grads))
    return finish(carry, grads, over) if finish else carry

  # What is always computed once needs no carry in memory.
  alone = len(plan.start) <= sizes.bins
  if alone:
    return wave(0, carry)
  with jax.named_scope('waves'):
    return jax.lax.fori_loop(0, plan.waves, wave, carry)
