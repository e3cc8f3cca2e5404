"""What crosses between devices inside the training programs, said by hand.

The partitioner would bring together whole embeddings for a few of their rows,
and the weights of layers a slice of a product at a time.
"""

import functools
from typing import Any, Callable, Sequence

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxrl_llm.sharding import rules as rules_lib
from jaxrl_llm.sharding.rules import Rules

# Numbers that `lookup` picks at once: 128 MB of a float32 gradient.
_PICKED = 1 << 25


def gathering(
    rules: Rules, dtype: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
  """Makes the function that brings a layer's weights together over `fsdp`.

  To be called in each layer, so that the whole weights of one layer exist at a
  time. They cross in the compute type; their gradient, summed over the rows of
  all devices, goes back to where they lie in its own.

  Args:
    rules: layout of the layers' parameters, with their leading axis.
    dtype: the compute type.

  Returns:
    Parameters of a layer, split as `rules` say, to the same of which each
    device has all but what `tensor` splits.
  """
  def one(name, x):
    spec = P(*rules_lib.spec_of(f'layers/{name}', rules)[1:])
    whole = rules_lib.without(spec, 'fsdp')

    @jax.custom_vjp
    def gather(x):
      y = jax.lax.with_sharding_constraint(x.astype(dtype), whole)
      return y.astype(x.dtype)

    def scatter(_, grad):
      # Left alone, the partitioner cuts the product that makes it into as many
      # small ones as there are devices, each of which reads all rows: 18%
      # longer for Llama 3.1 8B's update at 4k tokens, as compile_check has it.
      grad = jax.lax.with_sharding_constraint(grad, whole)
      return jax.lax.with_sharding_constraint(grad, spec),

    gather.defvjp(lambda x: (gather(x), None), scatter)
    return x if spec == whole else gather(x)

  return lambda layer: {name: one(name, x) for name, x in layer.items()}


def vocabulary_axes(rules: Rules, mesh: Mesh) -> tuple[str, ...]:
  """Mesh axes that the rows of the embeddings are split over.

  Args:
    rules: TRAIN_RULES or SAMPLE_RULES.
    mesh: see `make_mesh`.

  Returns:
    Names, the major axis first; none if neither weights nor the rows of a
    data group are split.
  """
  if mesh.shape['fsdp'] * mesh.shape['tensor'] == 1:
    return ()
  return rules_lib.axis_names(rules_lib.spec_of('embed', rules)[0])


def lookup(
    table: jax.Array, tokens: jax.Array, *, axes: Sequence[str], dtype: Any,
) -> jax.Array:
  """Rows of a table whose rows are split over devices.

  To be called where `data` is a manual axis: there XLA's partitioner fails on
  a plain lookup.

  Args:
    table: [V, D], split over `axes`.
    tokens: [B, S] int, split over `fsdp`.
    axes: see `vocabulary_axes`; not none.
    dtype: of the result. The table's gradient is summed in the table's type.

  Returns:
    [B, S, D], split over `fsdp`.
  """
  def column(table, tokens):
    if 'fsdp' in axes:
      tokens = jax.lax.all_gather(tokens, 'fsdp', tiled=True)
    index = tokens - jax.lax.axis_index(axes) * len(table)
    rows = table.at[index].get(
        mode='fill', fill_value=0, wrap_negative_indices=False)
    # Not before rows are picked, so that gradients add up in the table's type;
    # not after they cross, which takes half the time in the compute type.
    rows = rows.astype(dtype)
    if 'fsdp' in axes:
      rows = jax.lax.psum_scatter(rows, 'fsdp', tiled=True)
    return jax.lax.psum(rows, 'tensor')

  def local(table, tokens):
    # What is picked for all peers' tokens at once is bounded.
    size = len(tokens) * jax.lax.axis_size('fsdp') * table.shape[1]
    rows = jax.lax.map(
        functools.partial(column, table), tokens.T,
        batch_size=max(_PICKED // size, 1))
    return rows.swapaxes(0, 1)

  return jax.shard_map(
      local, axis_names={'fsdp', 'tensor'}, check_vma=False,
      in_specs=(P(axes), P('fsdp')), out_specs=P('fsdp'))(table, tokens)
