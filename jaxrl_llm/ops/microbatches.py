"""Going through a batch of ragged rows a few at a time, at little waste.

A microbatch costs what its longest row costs, not what the longest row
imaginable does: rows are sorted by length, and each microbatch runs at the
shortest of a few static lengths that holds it. How many microbatches there are
is data, so that rows not needed cost nothing, and nothing ever recompiles.
"""

import functools
from typing import Any, Callable, NamedTuple, Sequence

import jax
import jax.numpy as jnp

Array = jax.Array


class Microbatches(NamedTuple):
  """Rows of a batch, cut up.

  Attributes:
    rows: tree of [M, size, ...] arrays, longest rows first.
    bucket: [M] int32, which static length holds each microbatch.
    count: [] int32, microbatches that have a row that is needed.
  """
  rows: Any
  bucket: Array
  count: Array


def arrange(
    rows: Any, length: Array, *, size: int, lengths: Sequence[int],
) -> tuple[Microbatches, Array]:
  """Sorts rows by their length and cuts them up.

  Args:
    rows: tree of [B, ...] arrays; `size` divides B.
    length: [B] int32, tokens of each row; those with 0 are not needed, though
      a few may fill up the last microbatch.
    size: rows of a microbatch.
    lengths: static lengths, ascending; the last holds every row.

  Returns:
    The microbatches, and [B] the rows in the order in which they hold them.
  """
  order = jnp.argsort(-length, stable=True)
  longest = length[order][::size]
  return Microbatches(
      jax.tree.map(lambda x: x[order].reshape(-1, size, *x.shape[1:]), rows),
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

  Args:
    fn: (tree of [size, ...] arrays, length=) to a result; the static `length`
      holds each of the rows, and the result's shapes do not depend on it.
    combine: (i, carry, result of microbatch i) to the next carry.
    carry: initial value.
    microbatches: from `arrange`.
    lengths: those that `arrange` had. Each compiles `fn` once more.

  Returns:
    The last carry.
  """
  branches = [functools.partial(fn, length=n) for n in lengths]

  def body(i, carry):
    rows = jax.tree.map(lambda x: x[i], microbatches.rows)
    return combine(
        i, carry, jax.lax.switch(microbatches.bucket[i], branches, rows))

  with jax.named_scope('microbatches'):
    return jax.lax.fori_loop(0, microbatches.count, body, carry)


def columns(x: Array, start: Array, count: int) -> Array:
  """The `count` columns of x from each row's `start` on, zeros past the end.

  One contiguous slice per row, so that the gradient is one contiguous add.

  Args:
    x: [B, S, ...].
    start: [B] int32, first column of each row, at least 0.
    count: columns to take.

  Returns:
    [B, count, ...].
  """
  x = jnp.pad(x, ((0, 0), (0, count)) + ((0, 0),) * (x.ndim - 2))
  return jax.vmap(
      lambda row, first: jax.lax.dynamic_slice_in_dim(row, first, count)
  )(x, start)
