"""Microbatches of rows of different lengths, with little padding.

Rows are sorted by length, and each microbatch runs at the shortest of a few
static lengths that holds its rows. A microbatch thus costs about as much as
its own longest row, not as much as the longest row allowed. The number of
microbatches is traced: rows that are not needed cost nothing, and no batch
causes a recompilation.
"""

import functools
from typing import Any, Callable, NamedTuple, Sequence

import jax
import jax.numpy as jnp

Array = jax.Array


class Microbatches(NamedTuple):
  """The rows of a batch, split into microbatches.

  Attributes:
    rows: tree of [M, size, ...] arrays, microbatches with longer rows first.
    bucket: [M] int32, index of the static length of each microbatch.
    count: [] int32, microbatches with at least one needed row.
  """
  rows: Any
  bucket: Array
  count: Array


def arrange(
    rows: Any, length: Array, *, size: int, lengths: Sequence[int],
) -> tuple[Microbatches, Array]:
  """Sorts rows by length and splits them into microbatches.

  The rows of a single microbatch keep their order. (Where each device has one
  of them, the TPU compiler of libtpu 0.0.42 aborts on the sort.)

  Args:
    rows: tree of [B, ...] arrays; `size` divides B.
    length: [B] int32, tokens of each row. Rows of length 0 are not needed; a
      few of them may fill the last microbatch.
    size: rows of a microbatch.
    lengths: static lengths, ascending; every row fits into the last.

  Returns:
    The microbatches, and [B] int32, the row of the batch at each of their
    places.
  """
  order = jnp.arange(len(length))
  if len(length) > size:
    order = jnp.argsort(-length, stable=True)
  split = lambda x: x[order].reshape(-1, size, *x.shape[1:])
  longest = jnp.max(split(length), axis=1)
  return Microbatches(
      jax.tree.map(split, rows),
      jnp.searchsorted(jnp.asarray(lengths), longest),
      jnp.sum(longest > 0)), order


def fold(
    fn: Callable[..., Any],
    combine: Callable[[Array, Any, Any], Any],
    carry: Any,
    microbatches: Microbatches,
    *,
    lengths: Sequence[int],
) -> Any:
  """Folds the results of `fn` over the microbatches that are needed.

  A single microbatch is always computed.

  Args:
    fn: (tree of [size, ...] arrays, length=int) -> result. Every row fits into
      the static `length`; the shapes of the result do not depend on it.
    combine: (i, carry, result of microbatch i) -> next carry.
    carry: initial value.
    microbatches: from `arrange`.
    lengths: as given to `arrange`. `fn` is compiled once for each.

  Returns:
    The last carry.
  """
  branches = [functools.partial(fn, length=n) for n in lengths]

  def body(i, carry):
    rows = jax.tree.map(lambda x: x[i], microbatches.rows)
    with jax.named_scope('length'):
      result = jax.lax.switch(microbatches.bucket[i], branches, rows)
    return combine(i, carry, result)

  if len(microbatches.bucket) == 1:  # XLA then needs no carry in memory.
    return body(0, carry)
  with jax.named_scope('microbatches'):
    return jax.lax.fori_loop(0, microbatches.count, body, carry)


def columns(x: Array, start: Array, count: int) -> Array:
  """Slices `count` columns of x from each row's `start`, zeros past the end.

  Each row is one contiguous slice, so its gradient is one contiguous add.

  Args:
    x: [B, S, ...].
    start: [B] int32, first column of each row, at least 0.
    count: number of columns.

  Returns:
    [B, count, ...].
  """
  x = jnp.pad(x, ((0, 0), (0, count)) + ((0, 0),) * (x.ndim - 2))
  return jax.vmap(
      lambda row, first: jax.lax.dynamic_slice_in_dim(row, first, count)
  )(x, start)
