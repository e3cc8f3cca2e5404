"""Rows whose tokens form one list on each device, each prompt once.

Weights that are split over `fsdp` are gathered for each pass, so prompts do not
get a pass of their own, as in `prompts`. Instead, the tokens of a device's rows
of a microbatch form one list: all responses, then each prompt once. Everything
but attention works on the list, so padding is only at its end. For attention,
each row's prompt and response are copied from the list into a row: any
implementation serves, with windows and soft caps.

Each response begins with the last token of its prompt, and lacks its own last
token, which predicts nothing. A prompt lacks its last token.
"""

import dataclasses
import functools
from typing import Any, NamedTuple, Optional, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxrl_llm.learner import prompts
from jaxrl_llm.models import attention
from jaxrl_llm.types import Array, LearnerBatch


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Static sizes.

  Attributes:
    rows: rows of a list, if all of the batch are needed.
    slots: most rows of a list.
    prompt: L, tokens of a row before its response begins, at least.
    response: T, most tokens of a response.
    lengths: static lengths of lists, ascending; any rows fit into the last.
  """
  rows: int
  slots: int
  prompt: int
  response: int
  lengths: tuple[int, ...]

  @classmethod
  def of(cls, rows: int, max_prompt: int, max_response: int,
         lengths: Sequence[int]) -> 'Sizes':
    """Returns the sizes with the full length in addition to `lengths`.

    Raises:
      ValueError: a length is not below the full one.
    """
    full = rows * (max_prompt - 1 + max_response)
    if lengths and not 1 <= min(lengths) <= max(lengths) <= full:
      raise ValueError(
          f'learner.list_buckets={tuple(lengths)} must lie between 1 and '
          f'{full}, the tokens of the {rows} longest rows on a device: leave '
          'the others out.')
    # A slot more than rows lets short rows stand beside a long one elsewhere.
    # It costs attention over an empty row.
    return cls(rows, rows + (rows > 1), max_prompt, max_response,
               tuple(sorted({*lengths, full})))


class Rows(NamedTuple):
  """Facts about rows [..., B], in the order of their devices.

  Attributes:
    prompt: int32, equal for rows with the same prompt.
    before: int32, tokens of the prompt without its last.
    length: int32, tokens of the response; 0 for a row that is not needed.
  """
  prompt: Array
  before: Array
  length: Array

  @classmethod
  def of(cls, batch: LearnerBatch, needed: Array) -> 'Rows':
    """Returns the facts about the rows of a batch; `needed` is [B] bool."""
    prompt = batch.prompt
    if prompt is None:
      prompt = jnp.arange(len(needed))
    return cls(prompt, batch.prompt_length - 1,
               jnp.where(needed, batch.response_length, 0))


class Lists(NamedTuple):
  """Places of B rows in lists of N tokens, `rows` of them in each.

  Attributes:
    response: [B] int32, first column of each response.
    prompt: [B] int32, first column of each prompt.
    owner: [B] bool, whether the row is the first one with its prompt.
    before: [B] int32, tokens of the prompt.
    length: [B] int32, tokens of the response.
  """
  response: Array
  prompt: Array
  owner: Array
  before: Array
  length: Array


class Static(NamedTuple):
  """Static sizes of lists.

  Attributes:
    columns: N, tokens of a list.
    prompt: P, columns of a row for its prompt, at least its tokens.
    response: T, most tokens of a response in it.
  """
  columns: int
  prompt: int
  response: int

  @classmethod
  def of(cls, sizes: Sizes, columns: int) -> 'Static':
    """Returns the sizes of lists of one of the static lengths."""
    return cls(columns, min(sizes.prompt, columns),
               min(sizes.response, columns))


class Deal(NamedTuple):
  """Rows of the lists of M microbatches.

  Attributes:
    rows: [M, shards x slots] int32, rows of the batch; B for none.
    bucket: [M] int32, index of the static length of its lists.
    count: [] int32, microbatches with a row.
    real: [] int32, tokens that the lists have.
    computed: [] int32, these and the padding.
  """
  rows: Array
  bucket: Array
  count: Array
  real: Array
  computed: Array


def deal(rows: Rows, *, shards: int, sizes: Sizes) -> Deal:
  """Deals B rows to lists, so that those of a microbatch are equally long.

  Rows go from the longest to the shortest, each to the list with most room left
  after it. A prompt takes room unless the list already has it, so rows of a
  group come together where this costs no balance. All lists are first filled
  equally, then to the two static lengths around the mean of these; the filling
  with fewer computed tokens is taken.

  Args:
    rows: facts about the rows.
    shards: lists of a microbatch; with `sizes.rows` rows in each, B rows are M
      microbatches.
    sizes: static sizes.
  """
  count, size = len(rows.length), shards * sizes.rows
  needed = rows.length > 0
  most = -(-count // size)
  used = -(-jnp.sum(needed) // size)
  lengths = jnp.asarray(sizes.lengths)
  group, _, _ = prompts.number(rows.prompt, needed)
  group = jnp.minimum(group, count - 1)
  order = jnp.argsort(-rows.length, stable=True)
  microbatch = jnp.arange(most * shards) // shards

  def fill(target):
    """Fills lists up to `target` [M x shards] tokens or beyond."""
    def step(state, row):
      load, taken, has = state
      group, before, length = row
      own = has[group]
      after = load + jnp.where(own, 0, before) + length
      # One fits: a list with too few tokens left has at least `sizes.rows`.
      fits = (taken < sizes.slots) & (after <= lengths[-1]) & (
          microbatch < used)
      best = jnp.argmax(jnp.where(fits, target - after, -lengths[-1] - 1))
      here = (jnp.arange(len(load)) == best) & (length > 0)
      return (jnp.where(here, after, load), taken + here,
              has.at[group].set(own | here)), (best, taken[best])

    zeros = jnp.zeros(len(microbatch), jnp.int32)
    (load, _, _), place = jax.lax.scan(
        step, (zeros, zeros, jnp.zeros((count, len(zeros)), bool)),
        (group[order], rows.before[order], rows.length[order]))
    by_load = jnp.argsort(-load, stable=True)
    load = load[by_load].reshape(most, shards)
    where, seat = place
    where = jnp.where(needed[order], jnp.argsort(by_load)[where], len(zeros))
    dealt = jnp.full((len(zeros), sizes.slots), count, jnp.int32).at[
        where, seat].set(order.astype(jnp.int32), mode='drop')
    bucket = jnp.searchsorted(lengths, load[:, 0])
    return Deal(
        dealt.reshape(most, -1), bucket, jnp.sum(load[:, 0] > 0),
        jnp.sum(load),
        jnp.sum(jnp.where(load[:, 0] > 0, lengths[bucket] * shards, 0)))

  equal = fill(jnp.zeros(len(microbatch), jnp.int32))
  # A little more than the tokens, because a row is not divisible.
  mean = 1.01 * equal.real / (shards * jnp.maximum(used, 1))
  high = jnp.minimum(jnp.searchsorted(lengths, mean), len(lengths) - 1)
  low = jnp.maximum(high - 1, 0)
  share = (mean - lengths[low]) / jnp.maximum(lengths[high] - lengths[low], 1)
  mixed = fill(jnp.where(
      microbatch < jnp.ceil(share * used), lengths[high], lengths[low]))
  return jax.tree.map(functools.partial(
      jnp.where, mixed.computed < equal.computed), mixed, equal)


def places(rows: Rows, each: int) -> Lists:
  """Returns the places of B rows in lists of `each` rows."""
  rows = jax.tree.map(lambda x: x.reshape(-1, each), rows)
  needed = rows.length > 0
  response = jnp.cumsum(rows.length, 1) - rows.length
  same = rows.prompt[..., None] == rows.prompt[..., None, :]
  owner = needed & (
      jnp.argmax(same & needed[:, None], -1) == jnp.arange(each))
  own = jnp.where(owner, rows.before, 0)
  first = jnp.sum(rows.length, 1, keepdims=True) + jnp.cumsum(own, 1) - own
  prompt = jnp.max(jnp.where(same & owner[:, None], first[:, None], 0), -1)
  return Lists(*(x.reshape(-1) for x in (
      response, prompt, owner, rows.before, rows.length)))


def _wide(x, width):
  """Pads the second axis of x by `width`, so that every slice exists."""
  return jnp.pad(x, ((0, 0), (0, width)) + ((0, 0),) * (x.ndim - 2))


def _slice(x, start, size):
  return jax.lax.dynamic_slice_in_dim(x, start, size)


def _put(x, content, start):
  return jax.lax.dynamic_update_slice_in_dim(x, content, start, 0)


def on_each(fn, *args):
  """Calls fn on each device's part of arrays that are split over `fsdp`."""
  mesh = jax.sharding.get_abstract_mesh()
  free = {axis for axis, kind in zip(mesh.axis_names, mesh.axis_types)
          if kind == AxisType.Auto} & {'fsdp'}
  if free:
    fn = jax.shard_map(
        fn, axis_names=free, check_vma=False, in_specs=P('fsdp'),
        out_specs=P('fsdp'))
  return fn(*args)


def _rows(x, lists, static):
  """Computes `rows`."""
  n, p, t = static

  def local(x, lists):
    x, = _wide(x, max(p, t))

    def row(of):
      return _put(
          jnp.pad(_slice(x, of.prompt, p), ((0, t),) + ((0, 0),) * (x.ndim - 1)),
          _slice(x, of.response, t), jnp.minimum(of.before, p))

    return jax.vmap(row)(lists)

  return on_each(local, x, lists)


def _list(x, lists, static, add=False):
  """Computes `as_list`; with `add`, the transpose of `_rows`."""
  n, p, t = static

  def local(x, lists):
    out = jnp.zeros((n + max(p, t), *x.shape[2:]), x.dtype)
    each = [jax.tree.map(lambda y: y[i], (x, lists)) for i in range(len(x))]
    column = jnp.arange(p).reshape((p,) + (1,) * (x.ndim - 2))

    def put(out, content, start):
      if add:
        content += _slice(out, start, len(content))
      return _put(out, content, start)

    # What is written behind a response or prompt is overwritten by the next.
    for row, of in each:
      out = put(out, _slice(row, jnp.minimum(of.before, p), t), of.response)
    for row, of in each:
      content = row[:p]
      if add:
        content, start = jnp.where(column < of.before, content, 0), of.prompt
      else:
        start = jnp.where(of.owner, of.prompt, n)
      out = put(out, content, start)
    return out[None, :n]

  return on_each(local, x, lists)


def _known(x, lists, static):
  """Zeros the parts of rows that `as_list` does not take."""
  column = jnp.arange(static.prompt + static.response)
  begin = jnp.where(lists.owner, 0, lists.before)[:, None]
  there = (column >= begin) & (
      column < (lists.before + lists.length)[:, None])
  return jnp.where(there.reshape(*there.shape, *[1] * (x.ndim - 2)), x, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rows(x: Array, lists: Lists, static: Static) -> Array:
  """Copies the tokens of each row from its list.

  Args:
    x: [F, N, ...], lists.
    lists: places of the B rows.
    static: sizes.

  Returns:
    [B, P + T, ...]: each row's prompt, directly followed by its response; any
    other tokens behind it.
  """
  return _rows(x, lists, static)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def as_list(x: Array, lists: Lists, static: Static) -> Array:
  """Puts the tokens of rows into lists; the reverse of `rows`.

  Args:
    x: [B, P + T, ...], rows.
    lists: their places.
    static: sizes.

  Returns:
    [F, N, ...]. A prompt is from its first row. Other values are behind the
    last one.
  """
  return _list(x, lists, static)


# Autodiff would add a whole list for each row. What follows a row in `rows` is
# not visible to its tokens, so its gradient is zero.
rows.defvjp(
    lambda x, lists, static: (_rows(x, lists, static), lists),
    lambda static, lists, grad: (_list(grad, lists, static, add=True), None))
as_list.defvjp(
    lambda x, lists, static: (_list(x, lists, static), lists),
    lambda static, lists, grad: (
        _known(_rows(grad, lists, static), lists, static), None))


def responses(x: Array, lists: Lists, static: Static) -> Array:
  """Copies each response [B, T, ...] from its list in x [F, N, ...]."""
  def local(x, lists):
    x, = _wide(x, static.response)
    return jax.vmap(
        lambda start: _slice(x, start, static.response))(lists.response)

  return on_each(local, x, lists)


def inputs(tokens: Array, lists: Lists, static: Static) -> dict[str, Any]:
  """Returns the arguments of `transformer.forward` for lists.

  Args:
    tokens: [B, L + T] int32, each row's prompt, directly followed by its
      response.
    lists: places of the rows.
    static: sizes.
  """
  columns = static.prompt + static.response
  positions = jnp.broadcast_to(jnp.arange(columns), (len(tokens), columns))
  listed = lambda x: _list(x, lists, static)
  layout = attention.Layout(
      lambda x: rows(x, lists, static), lambda x: as_list(x, lists, static),
      columns)
  return dict(tokens=listed(tokens[:, :columns]), positions=listed(positions),
              layout=layout)


def targets(
    tokens: Array, ids: Optional[Array], lists: Lists, static: Static,
) -> tuple[Array, Optional[Array], Array]:
  """Returns what the head of the model needs for lists.

  Args:
    tokens: as for `inputs`.
    ids: [B, >= T, K] int32, of response tokens, or None.
    lists: places of the rows.
    static: sizes.

  Returns:
    [F, N] int32, the token after each one; [F, N, K], the ids of that token;
    and [F, N] bool, whether it belongs to a response. The first two hold any
    numbers elsewhere.
  """
  columns = static.prompt + static.response
  listed = lambda x: _list(x, lists, static)
  if ids is not None:
    place = lambda x, before: _put(jnp.zeros(
        (columns, x.shape[1]), x.dtype), x, jnp.minimum(before, static.prompt))
    ids = listed(jax.vmap(place)(ids[:, :static.response], lists.before))
  following = listed(tokens[:, 1:columns + 1])
  total = on_each(lambda x: jnp.sum(x, keepdims=True), lists.length)
  return following, ids, jnp.arange(static.columns) < total[:, None]
