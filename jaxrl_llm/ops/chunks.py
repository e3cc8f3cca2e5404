"""Functions of many tokens, applied to a chunk of them at a time."""

from typing import Any, Callable, Optional

import jax
import jax.numpy as jnp

Array = jax.Array


def over_chunks(
    fn: Callable[[Any], Any], tokens: Any, chunk: int, *,
    needed: Optional[Array] = None, axis: Optional[str] = None) -> Any:
  """Applies a function to a tree of [N, ...] arrays in chunks.

  Chunk i of n has the tokens i, i + n, i + 2n, ..., so tokens of every row:
  where rows are split over devices, each chunk keeps all devices busy. With
  `needed`, chunks are contiguous.

  Args:
    fn: (tree of [C, ...] arrays) -> the same of results.
    tokens: the tree. Intermediate results of `fn` are computed again in the
      backward pass if there is more than one chunk.
    chunk: most tokens of a chunk.
    needed: [N] bool, tokens whose results are used; chunks without one are
      skipped, and their results are zero. None for all.
    axis: manual mesh axis whose devices call this together, if any; a chunk is
      then needed if one of them needs it.
  """
  count = jax.tree.leaves(tokens)[0].shape[0]
  if count <= chunk:
    return fn(tokens)
  chunks = -(-count // chunk)
  size = -(-count // chunks)

  def split(x):
    padding = [(0, size * chunks - count)] + [(0, 0)] * (x.ndim - 1)
    x = jnp.pad(x, padding)
    if needed is not None:
      return x.reshape(chunks, size, *x.shape[1:])
    return x.reshape(size, chunks, *x.shape[1:]).swapaxes(0, 1)

  def join(x):
    if needed is None:
      x = x.swapaxes(0, 1)
    return x.reshape(size * chunks, *x.shape[2:])[:count]

  of_chunk, given = fn, jax.tree.map(split, tokens)
  if needed is not None:
    some = jnp.any(split(needed), axis=1)
    if axis is not None:
      some = jax.lax.pmax(some.astype(jnp.int32), axis) > 0

    def of_chunk(given):
      some, tokens = given
      nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(fn, tokens))
      with jax.named_scope('needed'):
        return jax.lax.cond(
            some, jax.checkpoint(fn, prevent_cse=False), lambda _: nothing,
            tokens)

    given = some, given
  # Without jax.checkpoint the scan would save the logits of every chunk.
  out = jax.lax.map(jax.checkpoint(of_chunk, prevent_cse=False), given)
  return jax.tree.map(join, out)
