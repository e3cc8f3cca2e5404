"""Microbatches of a plan on the devices, see `packing`.

Rows are put in the order of their lists once; each microbatch then takes the
next ones of each device. Their number is traced, so rows that are not needed
cost nothing.
"""

import functools
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxrl_llm import sharding
from jaxrl_llm.learner.packing import Plan, Sizes
from jaxrl_llm.ops import ragged
from jaxrl_llm.sharding import collectives
from jaxrl_llm.types import Array, LearnerBatch


class MicrobatchTokens(NamedTuple):
  """Tokens of a microbatch.

  Attributes:
    lists: places of its rows.
    reach: [F, chunks] int32, the first column in reach of each chunk.
    sizes: static sizes.
  """
  lists: ragged.Lists
  reach: Array
  sizes: Sizes


def arrange(tree: Any, plan: Plan, mesh: jax.sharding.Mesh) -> Any:
  """Returns rows [B, ...] in the order of their lists [F, Q, ...]."""
  # Places without a row have the number B, which no row has: they become 0.
  return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(
      x.at[plan.order].get(mode='fill', fill_value=0), sharding.rows(mesh)),
                      tree)


def in_place(tree: Any, plan: Plan, count: int) -> Any:
  """Returns results of rows [F, Q, ...] as [B, ...], B is `count`."""
  return jax.tree.map(
      lambda x: jnp.zeros((count, *x.shape[2:]), x.dtype).at[plan.order].set(
          x, mode='drop'), tree)


def fold(
    of_microbatch: Callable[..., tuple[Any, Any]], plan: Plan,
    rows: tuple[LearnerBatch, ...], given: Any, mesh: jax.sharding.Mesh,
) -> tuple[Any, Any]:
  """Adds up the results of microbatches, on each data group and over all.

  Each data group processes its own rows, so that collectives over `data` run
  once per batch, not once per microbatch. Inside, `fsdp` and `tensor` are
  automatic axes.

  Args:
    of_microbatch: (rows of a microbatch [f x R, ...], their MicrobatchTokens,
      given) -> ((terms, candidates), results of the rows [f x R, ...]), for the
      f shards of a data group. No candidate is below 0.
    plan: of B rows.
    rows: from `arrange`, [F, Q, ...] each, the batch and anything else.
    given: any tree for `of_microbatch`, the same on all data groups.
    mesh: with axes data, fsdp and tensor.

  Returns:
    (Sums of the terms, maxima of the candidates), and the results of rows
    [F, Q, ...], 0 for those without.
  """
  # Not needed inside, and `order` has the numbers of the whole batch.
  plan = plan.replace(order=None, shares=None)

  @functools.partial(
      jax.shard_map, mesh=mesh, axis_names={'data'}, check_vma=False,
      in_specs=(_specs(plan), P('data'), P()), out_specs=(P(), P('data')))
  def of_group(plan, rows, given):
    def microbatch(i):
      mine, lists, place = _take(i, plan, rows)
      at = MicrobatchTokens(lists, plan.reach[i], plan.sizes)
      return *of_microbatch(mine, at, given), place

    result, of_rows = jax.eval_shape(lambda: microbatch(0)[:2])
    everywhere = jax.tree.map(lambda x: jnp.zeros(
        (*plan.response.shape, *x.shape[1:]), x.dtype), of_rows)

    def body(i, carry):
      total, everywhere = carry
      result, of_rows, place = microbatch(i)
      total = tuple(map(jax.tree.map, (jnp.add, jnp.maximum), total, result))
      return total, place(everywhere, of_rows)

    def over_data(total):
      sums, maxima = total
      if mesh.shape['data'] > 1:  # XLA rejects collectives over one group.
        maxima = jax.lax.pmax(maxima, 'data')
      return collectives.sum_over_data(sums, mesh), maxima

    # Without a loop XLA keeps no carry: no second copy of the gradient.
    if plan.sizes.single:
      total, of_rows, place = microbatch(0)
      return over_data(total), place(everywhere, of_rows)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), result)
    with jax.named_scope('microbatches'):
      total, everywhere = jax.lax.fori_loop(
          0, plan.count, body, (zeros, everywhere))
    return over_data(total), everywhere

  return of_group(plan, rows, given)


def _specs(plan: Plan) -> Plan:
  """Returns how the arrays of a plan are split over `data`."""
  of_lists = P(None, 'data')
  return Plan(
      order=None, response=P('data'), prompt=P('data'), owner=P('data'),
      first=of_lists, rows=of_lists, reach=of_lists, count=P(), shares=None,
      sizes=plan.sizes)


def _take(i, plan, rows):
  """Takes the rows of microbatch i.

  Returns:
    The rows [f x R, ...]; Lists of them; and (tree of [f, Q, ...], results of
    the rows) -> the tree with the results.
  """
  first, number, places = plan.first[i], plan.rows[i], plan.sizes.places

  def take(first, number, tree):
    taken = jnp.arange(places) < number
    rest = lambda x: taken.reshape(-1, *[1] * (x.ndim - 1))

    def part(x):
      x = jax.lax.dynamic_slice_in_dim(x[0], first[0], places)
      return jnp.where(rest(x), x, jnp.zeros((), x.dtype))

    return taken, jax.tree.map(part, tree)

  taken, (mine, response, prompt, owner) = ragged.on_each(
      take, first, number, (rows, plan.response, plan.prompt, plan.owner))
  batch = mine[0]
  # The slice always has R rows. Those that belong to the next list get columns
  # behind this list, where nothing reads them.
  lists = ragged.Lists(
      jnp.where(taken, response, plan.sizes.columns), prompt, owner,
      batch.prompt_length - 1, batch.response_length)

  def place(tree, results):
    def local(first, number, tree, results):
      # Slices of neighbouring lists overlap: rows of the other list stay.
      def put(x, new):
        old = jax.lax.dynamic_slice_in_dim(x[0], first[0], places)
        mine = jnp.arange(places).reshape(-1, *[1] * (new.ndim - 1)) < number
        return jax.lax.dynamic_update_slice_in_dim(
            x[0], jnp.where(mine, new, old), first[0], 0)[None]

      return jax.tree.map(put, tree, results)

    return ragged.on_each(local, first, number, tree, results)

  return mine, lists, place
