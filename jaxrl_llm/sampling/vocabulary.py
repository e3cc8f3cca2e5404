"""A vocabulary that may be split over a mesh axis, and fixed blocks of it.

Every function takes `axis`, the manual mesh axis over which the last axis of
[..., V] arrays is split into equal runs, in order; None where it is whole. A
[..., v] array is this shard's part of one.

Sums over the vocabulary are sums of the blocks' sums, and the blocks'
boundaries depend on V alone wherever they can: each is a sum of the same
numbers on any number of shards, and so what is drawn does not depend on it.
"""

import math

import jax
import jax.numpy as jnp

Array = jax.Array

WHOLE = 256  # Vocabularies up to this size are one block, and stay whole.
_BLOCKS = 16  # The least number of blocks of the others.


def total(x: Array, axis: str | None) -> Array:
  """Sum of the shards' x."""
  return x if axis is None else jax.lax.psum(x, axis)


def largest(x: Array, axis: str | None) -> Array:
  """Elementwise maximum of the shards' x."""
  return x if axis is None else jax.lax.pmax(x, axis)


def gather(x: Array, axis: str | None) -> Array:
  """The shards' [..., n] side by side on the last axis, on each of them."""
  if axis is None:
    return x
  return jax.lax.all_gather(x, axis, axis=x.ndim - 1, tiled=True)


def shards(axis: str | None) -> int:
  """Number of shards."""
  return 1 if axis is None else jax.lax.axis_size(axis)


def first(n: int, axis: str | None) -> Array | int:
  """Place, among all shards' entries, of the first of this shard's n."""
  return 0 if axis is None else n * jax.lax.axis_index(axis)


def _layout(v, axis):
  """(runs, blocks of a run, tokens of a run) of a part of v tokens.

  A run is a stretch of the vocabulary that no split crosses: a sixteenth, or
  the largest such part that V can be cut into. Only where the number of shards
  does not divide the number of runs is a run a shard's part.
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
  """Cuts [..., v] log-probs or logits into blocks.

  Returns:
    [..., b, n], the shard's b blocks; -inf fills blocks that are shorter.
  """
  runs, parts, run = _layout(x.shape[-1], axis)
  x = x.reshape(*x.shape[:-1], runs, run)
  if run % parts:
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -run % parts)],
                constant_values=-jnp.inf)
  return x.reshape(*x.shape[:-2], runs * parts, -1)


def block_start(block: Array, v: int, axis: str | None) -> Array:
  """First token of blocks that are numbered over all shards."""
  _, parts, run = _layout(v, axis)
  return block // parts * run + block % parts * -(-run // parts)
