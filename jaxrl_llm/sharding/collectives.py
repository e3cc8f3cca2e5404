"""Explicit collectives of the training programs.

XLA's partitioner would all-gather whole embeddings to read a few rows, and
would split the products with the layers' weights into many small ones.
"""

import functools
from typing import Any, Callable, Sequence

import jax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxrl_llm.sharding import rules as rules_lib
from jaxrl_llm.sharding.rules import Rules

# Numbers that `lookup` reads at once: 128 MB of a float32 gradient.
_PICKED = 1 << 25
# Numbers of an array that `sum_over_data` sends apart.
_LARGE = 1 << 18


def gathering(
    rules: Rules, dtype: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
  """Makes the function that all-gathers a layer's weights over `fsdp`.

  Call it in each layer, so that only one layer's gathered weights exist at a
  time. Weights are gathered in the compute type. Their gradient is summed over
  the rows of all devices and scattered to the layout of `rules`, in its own
  type.

  Args:
    rules: layout of the layers' parameters, including their leading axis.
    dtype: the compute type.

  Returns:
    (parameters of a layer, split by `rules`) -> the same parameters, split over
    `tensor` only.
  """
  def gathered(name, x):
    spec = P(*rules_lib.spec_of(f'layers/{name}', rules)[1:])
    whole = rules_lib.without(spec, 'fsdp')

    @jax.custom_vjp
    def gather(x):
      y = jax.lax.with_sharding_constraint(x.astype(dtype), whole)
      return y.astype(x.dtype)

    def scatter(_, grad):
      # Without the first constraint, the partitioner splits the product that
      # computes `grad` into one small product per device, each of which reads
      # all rows: 18% slower for Llama 3.1 8B's update at 4k tokens, estimated
      # by compile_check.
      grad = jax.lax.with_sharding_constraint(grad, whole)
      return jax.lax.with_sharding_constraint(grad, spec),

    gather.defvjp(lambda x: (gather(x), None), scatter)
    return x if spec == whole else gather(x)

  return lambda layer: {name: gathered(name, x) for name, x in layer.items()}


def sum_over_data(tree: Any, mesh: Mesh) -> Any:
  """Sums arrays over `data`, small ones in one message.

  Between the processes of CPUs each array costs about 0.3 ms, whatever its
  size.

  Args:
    tree: arrays, the same on the devices of a data group or split by `fsdp` and
      `tensor`; `data` must be a manual axis.
    mesh: with axes data, fsdp and tensor.
  """
  if mesh.shape['data'] == 1:  # XLA rejects collectives over one group.
    return tree
  if mesh.shape['fsdp'] * mesh.shape['tensor'] > 1:
    return jax.lax.psum(tree, 'data')  # To join them would reshard them.
  leaves, structure = jax.tree.flatten(tree)
  small = [x for x in leaves if x.size < _LARGE]
  joined, separate = ravel_pytree(small)
  *large, joined = jax.lax.psum(
      [*(x for x in leaves if x.size >= _LARGE), joined], 'data')
  large, small = iter(large), iter(separate(joined))
  return structure.unflatten(
      [next(large if x.size >= _LARGE else small) for x in leaves])


def vocabulary_axes(rules: Rules, mesh: Mesh) -> tuple[str, ...]:
  """Returns the mesh axes that the rows of the embeddings are split over.

  Args:
    rules: TRAIN_RULES or SAMPLE_RULES.
    mesh: with axes data, fsdp and tensor.

  Returns:
    Names, the major axis first; empty if `fsdp` and `tensor` have size 1.
  """
  if mesh.shape['fsdp'] * mesh.shape['tensor'] == 1:
    return ()
  return rules_lib.axis_names(rules_lib.spec_of('embed', rules)[0])


def lookup(
    table: jax.Array, tokens: jax.Array, *, axes: Sequence[str], dtype: Any,
) -> jax.Array:
  """Looks up rows of a table whose rows are split over devices.

  Call it where `data` is a manual axis: XLA's partitioner fails on a plain
  lookup there.

  Args:
    table: [V, D], split over `axes`.
    tokens: [B, S] int, split over `fsdp`.
    axes: from `vocabulary_axes`; not empty.
    dtype: type of the result. The table's gradient is summed in the table's
      type.

  Returns:
    [B, S, D], split over `fsdp`.
  """
  def column(table, tokens):
    if 'fsdp' in axes:
      tokens = jax.lax.all_gather(tokens, 'fsdp', tiled=True)
    index = tokens - jax.lax.axis_index(axes) * len(table)
    rows = table.at[index].get(
        mode='fill', fill_value=0, wrap_negative_indices=False)
    # Casts after reading the rows, so that gradients are summed in the table's
    # type, and before the collectives, which are twice as fast in 16 bits.
    rows = rows.astype(dtype)
    if 'fsdp' in axes:
      rows = jax.lax.psum_scatter(rows, 'fsdp', tiled=True)
    return jax.lax.psum(rows, 'tensor')

  def local(table, tokens):
    # Columns in batches bound the memory of the rows of all peers' tokens.
    size = len(tokens) * jax.lax.axis_size('fsdp') * table.shape[1]
    rows = jax.lax.map(
        functools.partial(column, table), tokens.T,
        batch_size=max(_PICKED // size, 1))
    return rows.swapaxes(0, 1)

  return jax.shard_map(
      local, axis_names={'fsdp', 'tensor'}, check_vma=False,
      in_specs=(P(axes), P('fsdp')), out_specs=P('fsdp'))(table, tokens)
