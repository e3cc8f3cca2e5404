"""Attention over lists of tokens, see `packing`: in chunks, or in rows.

In chunks, queries stay where they are, and a chunk of them gets copies of the
keys and values that it may see; all scores are in memory, for short rows and
for CPUs. In rows, each row's prompt and response are copied side by side, so
that any kernel serves.
"""


import jax
import jax.numpy as jnp

from jaxrl_llm.learner import packing
from jaxrl_llm.models import attention
from jaxrl_llm.ops import ragged
from jaxrl_llm.types import Array


def in_rows(
    lists: ragged.Lists, columns: ragged.ListColumns, static: ragged.Static,
    sizes: packing.Sizes) -> attention.Layout:
  """Makes the layout in which attention is computed over rows.

  Args:
    lists: places of the rows.
    columns: of the lists.
    static: sizes of rows.
    sizes: of the lists.
  """
  firm, short = sizes.layout.firm, sizes.layout.short

  def attend(q, k, v, **options):
    def over(lists, q, k, v, static=static):
      rows = (ragged.rows(x, lists, static) for x in (q, k, v))
      return ragged.as_list(
          attention.causal_attention(*rows, **options), lists, static)

    def local(lists, slot, q, k, v):
      first, rest = (jax.tree.map(lambda x: x[part], lists) for part in (
          slice(firm), slice(firm, None)))

      def further(out):
        return jnp.where(
            (slot >= firm)[..., None, None],
            over(rest, q, k, v, static._replace(response=short)), out)

      # Static shapes must have room for many short rows; most lists have none.
      # compile_check finds the branch by its name.
      with jax.named_scope('further_rows'):
        return jax.lax.cond(
            jnp.any(rest.length > 0), further, lambda out: out,
            over(first, q, k, v))

    if firm in (None, sizes.places):
      return over(lists, q, k, v)
    return ragged.on_each(local, lists, columns.row, q, k, v)

  return attention.Layout(
      attend, static.prompt + static.response, columns.position)


def in_chunks(
    columns: ragged.ListColumns, reach: Array, static: ragged.Static,
    sizes: packing.Sizes) -> attention.Layout:
  """Makes the layout in which attention is computed over chunks of columns.

  A token sees the tokens of its own sequence and of its prompt, as far as they
  are before it. They are in its chunk, in the columns before the chunk, or in
  the columns in reach.

  Args:
    columns: of the lists.
    reach: [F, chunks] int32, the first column in reach of each chunk.
    static: sizes of rows.
    sizes: of the lists.
  """
  # A copy for each chunk, not one product of all columns with all: its scores
  # would be N x N, most of them hidden.
  count, layout = sizes.chunks, sizes.layout
  chunk, back, width = layout.chunk, layout.back, layout.reach
  earlier = back // chunk
  split = lambda x: x.reshape(count, -1, *x.shape[2:])

  def around(x, reach):
    """Returns the columns [chunks, reach + back + C, ...] chunks attend to."""
    near = jax.vmap(lambda first: jax.lax.dynamic_slice_in_dim(
        x[0], first, width))(reach[0])
    own = split(x)
    before = jnp.pad(own, ((earlier, 0),) + ((0, 0),) * (own.ndim - 1))
    return jnp.concatenate(
        [near, *(before[i:i + count] for i in range(earlier)), own], 1)

  def backs(columns, reach):
    """Returns [chunks, C, reach + back + C], positions back; -1 if hidden."""
    column = jnp.arange(count)[:, None] * chunk
    near = reach[0][:, None] + jnp.arange(width)
    # A key that is in reach and before its chunk or in it counts once.
    twice = (near >= column - back) & (near < column + chunk)
    # What is before the list is in no sequence.
    owner = around(columns.sequence + 1, reach) - 1
    owner = jnp.where(jnp.pad(
        twice, ((0, 0), (0, back + chunk))), -1, owner)[:, None]
    position, sequence, parent = (split(x)[..., None] for x in (
        columns.position, columns.sequence, columns.parent))
    seen = (owner >= 0) & ((owner == sequence) | (owner == parent))
    return jnp.where(
        seen, position - around(columns.position, reach)[:, None], -1)

  # Once for all layers, outside of their scan.
  distance = ragged.on_each(backs, columns, reach)

  def attend(q, k, v, *, scale, window, windowed, cap, implementation):
    del implementation

    def in_chunks(q, k, v):
      k, v = (ragged.on_each(around, x, reach) for x in (k, v))
      return attention.masked_attention(
          ragged.on_each(split, q), k, v,
          attention.visible(distance, window, windowed), scale=scale, cap=cap)

    # The copies of keys and values, several times as large as these, are made
    # again for the gradient; the weights of attention are not.
    out = jax.checkpoint(
        in_chunks, prevent_cse=False,
        policy=jax.checkpoint_policies.save_only_these_names(
            attention.SAVED, attention.WEIGHTS))(q, k, v)
    return ragged.on_each(
        lambda x: x.reshape(1, sizes.columns, *x.shape[2:]), out)

  return attention.Layout(
      attend, static.prompt + static.response, columns.position)
