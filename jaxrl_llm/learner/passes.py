"""Passes over the rows of a batch: in which microbatches, on which devices.

`LearnerConfig.plan` says how. 'rows': each row whole, in microbatches of rows
of similar lengths, longest rows first, see `ops/microbatches`. 'waves': prompts
first, once for all rows that share them, see `prompts`. 'lists': the tokens of
a microbatch in one list on each device, with prompts once in it, see `lists`.
`cfg` is a `update.LearnerConfig`.
"""

import functools
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxrl_llm import sharding
from jaxrl_llm.learner import forward, lists, prompts
from jaxrl_llm.ops import microbatches, ragged
from jaxrl_llm.sharding import collectives
from jaxrl_llm.types import Array, LearnerBatch

PLANS = ('rows', 'waves', 'lists')


class Work(NamedTuple):
  """Rows of a batch in the order in which they are computed.

  Attributes:
    cut: `microbatches.Microbatches`, with lists those of the rows and of
      `ragged.Rows`; or, in waves, a tuple of the rows, LearnerBatch of them,
      and whether they are needed, by data shard.
    order: int32, the row of the batch at each place; B for none.
    real: [] int32, tokens of needed rows; None in waves.
    computed: [] int32, tokens that are computed, with padding; None in waves.
  """
  cut: Any
  order: Array
  real: Array | None
  computed: Array | None

  def in_place(self, x: Array, count: int) -> Array:
    """Returns results of rows, from `run`, in the order of the batch.

    Args:
      x: results.
      count: B.
    """
    if self.real is not None:  # microbatches of rows
      x = x.reshape(len(self.order), *x.shape[2:])
    return jnp.zeros((count, *x.shape[1:]), x.dtype).at[self.order].set(
        x, mode='drop')


def arrange(
    rows: Any, batch: LearnerBatch, needed: Array, cfg, mesh) -> Work:
  """Orders rows for passes, the `needed` [B] ones first.

  Args:
    rows: tree of [B, ...] arrays.
    batch: the rows' tokens.
    needed: [B] bool.
    cfg: see above.
    mesh: see `sharding`.
  """
  if cfg.plan == 'lists':
    facts = jax.lax.with_sharding_constraint(
        lists.facts(batch, needed), sharding.replicated(mesh))
    dealt = lists.deal(
        facts, shards=sharding.data_shards(mesh), sizes=cfg.sizes)
    return Work(microbatches.Microbatches(
        jax.tree.map(
            lambda x: x.at[dealt.rows].get(mode='fill', fill_value=0),
            (rows, facts)), dealt.bucket, dealt.count),
                dealt.rows.ravel(), dealt.real, dealt.computed)
  if cfg.plan == 'waves':
    if batch.prompt is None:
      batch = batch.replace(prompt=jnp.arange(len(needed)))
    order = prompts.deal(batch, needed, mesh.shape['data'])
    plain = batch.replace(top_ids=None, top_logprobs=None)
    return Work(jax.tree.map(
        lambda x: x[order], (rows, plain, needed)), order, None, None)
  length = jnp.where(needed, batch.prompt_length + batch.response_length, 0)
  cut, order = microbatches.arrange(
      rows, length, size=cfg.microbatch, lengths=cfg.lengths)
  computed = jnp.where(
      jnp.arange(len(cut.bucket)) < cut.count,
      jnp.asarray(cfg.lengths)[cut.bucket] * cfg.microbatch, 0)
  return Work(cut, order, jnp.sum(length), jnp.sum(computed))


def run(
    work: Work, trees: Any, numbers: Any, *, cfg, mesh, nets,
    one: Callable[..., Any], add: Callable[..., Any],
    init: Callable[..., Any], done: Callable[[Any], Any], out: Any,
    specs: Any = None) -> tuple[Any, Array, Array]:
  """Folds the results of `one` over the microbatches, on each data group.

  Each data group processes its own rows, so that collectives over `data` run
  once per batch, not once per microbatch. Inside, `fsdp` and `tensor` are
  automatic axes.

  Args:
    work: from `arrange`.
    trees: parameters of the players, frozen ones, and the writer's or None.
    numbers: any tree of numbers for `one`.
    cfg: see above.
    mesh: see `sharding`.
    nets: see `forward`.
    one: (trees, rows, numbers, length, shared) -> result; `shared` is that of
      `forward.stats`. With `specs`,
      a pair: the result, whose first part are gradients like the players'
      parameters, and gradients of `Shared.kv`.
    add: (place, carry, result) -> next carry; x.at[place].set(y, mode='drop')
      puts results of the microbatch's rows into an array of all rows.
    init: (abstract result, leading shape of arrays of all rows) -> first carry.
    done: (last carry) -> the data group's result.
    out: PartitionSpecs of it over `data`; 'rows' stands for arrays of all rows.
    specs: PartitionSpecs of the gradients, for a backward pass, or None.

  Returns:
    The results; tokens that are real, and computed.
  """
  waves = cfg.plan == 'waves'
  rows_spec = P('data') if waves else P(None, 'data')
  out = jax.tree.map(
      lambda x: rows_spec if x == 'rows' else x, out,
      is_leaf=lambda x: isinstance(x, P))
  into = P('data') if waves else microbatches.Microbatches(
      rows=P(None, 'data'), bucket=P(), count=P())

  @functools.partial(
      jax.shard_map, mesh=mesh, axis_names={'data'}, check_vma=False,
      in_specs=(P(), into, P()), out_specs=(out, P()))
  def of_group(trees, cut, numbers):
    args = cut, trees, numbers
    given = dict(cfg=cfg, one=one, add=add, init=init, specs=specs)
    if not waves:
      return done(_in_microbatches(*args, **given)), None
    carry, tokens = _in_waves(*args, nets=nets, **given)
    return done(carry), collectives.sum_over_data(tokens, mesh)

  found, tokens = of_group(trees, work.cut, numbers)
  return found, *(tokens or (work.real, work.computed))


def _in_microbatches(cut, trees, numbers, *, cfg, one, add, init, specs):
  """Computes `run` on a data group, in microbatches of rows or of lists."""
  def fn(rows, length):
    places = None
    if cfg.plan == 'lists':
      rows, facts = rows
      places = ragged.places(facts, cfg.sizes.slots)
    found = one(trees, rows, numbers, length, places)
    return found if specs is None else found[0]

  shape = jax.eval_shape(
      functools.partial(fn, length=cfg.lengths[0]),
      jax.tree.map(lambda x: x[0], cut.rows))
  lead = jax.tree.leaves(cut.rows)[0].shape[:2]
  return microbatches.fold(
      fn, add, init(shape, lead), cut, lengths=cfg.lengths)


def _in_waves(cut, trees, numbers, *, cfg, nets, one, add, init, specs):
  """Computes `run` on a data group, each prompt once, before its rows."""
  rows, batch, needed = cut
  sizes = cfg.sizes
  plan = prompts.plan(batch, needed, sizes)
  of_prompts = functools.partial(forward.of_prompts, trees, nets=nets, cfg=cfg)

  def fn(rows, kv, start, length_before, length):
    return one(trees, rows, numbers, length, forward.Shared(
        *kv, start, length_before))

  kv = jax.eval_shape(lambda: of_prompts(lambda fn, x: x))
  first = lambda tree: jax.tree.map(
      lambda x: jax.ShapeDtypeStruct((sizes.rows, *x.shape[1:]), x.dtype), tree)
  shape = jax.eval_shape(
      functools.partial(fn, length=sizes.lengths[0]), first(rows), kv,
      first(plan.start), first(plan.length))
  finish = None
  if specs is not None:
    shape, _ = shape

    def finish(carry, of_kv, over):
      (grads, *rest), *others = carry
      grads = forward.back_to_prompts(
          trees, grads, of_kv, over, nets=nets, cfg=cfg, specs=specs)
      return (grads, *rest), *others

  carry = prompts.fold(
      plan, rows, init(shape, (len(needed),)), sizes=sizes, prepare=of_prompts,
      one=fn, add=add, finish=finish)
  return carry, (plan.real, plan.computed)
