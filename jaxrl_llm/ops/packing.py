"""Packing of sequences of different lengths, on the device."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


class Packed(NamedTuple):
  """Places of N sequences in bins of a fixed width.

  Attributes:
    bin: [N] int32, the bin of each sequence.
    offset: [N] int32, its first column there.
    used: [] int32, bins with at least one token; they are the first ones.
  """
  bin: Array
  offset: Array
  used: Array


def best_fit(length: Array, width: int) -> Packed:
  """Packs sequences into bins, longest first, each where least room is left.

  At most one of the bins is half empty or emptier.

  Args:
    length: [N] int32, tokens of each sequence, at most `width`. Sequences of
      length 0 take no room.
    width: tokens of a bin.

  Returns:
    The places.
  """
  order = jnp.argsort(-length, stable=True)

  def place(room, i):
    # An unused bin has the most room, so it is taken only if no other fits.
    b = jnp.argmin(jnp.where(room >= length[i], room, width + 1))
    return room.at[b].add(-length[i]), (b, width - room[b])

  room, (bins, offset) = jax.lax.scan(
      place, jnp.full(length.shape, width, jnp.int32), order)
  back = lambda x: jnp.zeros(length.shape, jnp.int32).at[order].set(
      x.astype(jnp.int32))
  return Packed(
      back(bins), back(offset), jnp.sum(room < width, dtype=jnp.int32))


def owners(packed: Packed, length: Array, width: int) -> Array:
  """Finds the sequence at each column of each bin.

  Args:
    packed: places of N sequences.
    length: [N] int32, as given to `best_fit`.
    width: tokens of a bin.

  Returns:
    [N, width] int32, numbers of sequences; -1 in columns without one.
  """
  count = len(length)
  number = jnp.arange(count)
  # The latest start at or before a column has the largest code.
  code = jnp.zeros((count, width), jnp.int32).at[
      jnp.where(length > 0, packed.bin, count), packed.offset].set(
          packed.offset * count + number + 1, mode='drop')
  code = jax.lax.cummax(code, axis=1) - 1
  owner = jnp.where(code < 0, 0, code % count)
  inside = jnp.arange(width) < packed.offset[owner] + length[owner]
  return jnp.where((code >= 0) & inside, owner, -1)


def put(x: Array, content: Array, column: Array) -> Array:
  """Puts [N, width, ...] into [N, C, ...], from a column on."""
  return jax.lax.dynamic_update_slice_in_dim(x, content, column, axis=1)


def get(x: Array, column: Array, width: int) -> Array:
  """Returns `width` columns of [N, C, ...], from a column on."""
  return jax.lax.dynamic_slice_in_dim(x, column, width, axis=1)
