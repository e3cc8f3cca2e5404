"""Collectives over a split vocabulary, and its blocks.

Every function takes `axis`, the manual mesh axis over which the last axis of
[..., V] arrays is split into equal parts, in order; None if it is not split. A
[..., v] array is this shard's part.

A sum over the vocabulary is computed as the sum of the sums of blocks. Where
possible, the boundaries of the blocks depend on V alone. Each block then sums
the same numbers on any number of shards, so the drawn tokens are the same too.
"""

import math

import jax
import jax.numpy as jnp

Array = jax.Array

# Vocabularies up to this size are one block and are not split: a message takes
# longer than the work it would save.
WHOLE = 256
# Minimum number of blocks of larger vocabularies. Fixed, not the number of
# shards, so that sums and draws are the same on any of them.
_BLOCKS = 16


def total(x: Array, axis: str | None) -> Array:
  """Returns the sum of the shards' x."""
  return x if axis is None else jax.lax.psum(x, axis)


def largest(x: Array, axis: str | None) -> Array:
  """Returns the elementwise maximum of the shards' x."""
  return x if axis is None else jax.lax.pmax(x, axis)


def gather(x: Array, axis: str | None) -> Array:
  """All-gathers the shards' [..., n] along the last axis."""
  if axis is None:
    return x
  return jax.lax.all_gather(x, axis, axis=x.ndim - 1, tiled=True)


def shards(axis: str | None) -> int:
  """Returns the number of shards."""
  return 1 if axis is None else jax.lax.axis_size(axis)


def first(n: int, axis: str | None) -> Array | int:
  """Returns the index of this shard's first entry, with n entries per shard."""
  return 0 if axis is None else n * jax.lax.axis_index(axis)


def _layout(v, axis):
  """Returns (runs, blocks of a run, tokens of a run) of a shard's v tokens.

  A run is a contiguous part of the vocabulary on one shard. There are
  gcd(V, 16) runs, or one per shard if the number of shards does not divide
  this.
  """
  n = shards(axis)
  size = v * n
  if size <= WHOLE and n == 1:
    return 1, 1, size
  runs = math.gcd(size, _BLOCKS)
  if runs % n:
    runs = n
  return runs // n, -(-_BLOCKS // runs), size // runs


def blocks(x: Array, axis: str | None) -> Array:
  """Splits [..., v] log-probs or logits into blocks.

  Returns:
    [..., b, n], the shard's b blocks; shorter blocks are padded with -inf.
  """
  runs, parts, run = _layout(x.shape[-1], axis)
  x = x.reshape(*x.shape[:-1], runs, run)
  if run % parts:
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -run % parts)],
                constant_values=-jnp.inf)
  return x.reshape(*x.shape[:-2], runs * parts, -1)


def block_start(block: Array, v: int, axis: str | None) -> Array:
  """Returns the first token of blocks, which are numbered over all shards."""
  _, parts, run = _layout(v, axis)
  return block // parts * run + block % parts * -(-run // parts)
