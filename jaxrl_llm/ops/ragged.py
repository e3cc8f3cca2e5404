"""Copies between rows of tokens and lists of them, on each device.

A list has the tokens of several rows without padding between them: first all
responses, then each prompt once. Rows have their prompt and response side by
side. Lists [F, N, ...] and rows [B, S, ...] are split over the mesh axis
`fsdp`; each device has one list, of B / F rows.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

Array = jax.Array

_slice = jax.lax.dynamic_slice_in_dim
_put = jax.lax.dynamic_update_slice_in_dim


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
      prompt = _slice(x, of.prompt, p)
      return _put(
          jnp.pad(prompt, ((0, t),) + ((0, 0),) * (x.ndim - 1)),
          _slice(x, of.response, t), jnp.minimum(of.before, p), 0)

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
      return _put(out, content, start, 0)

    # What is written behind a response or prompt is overwritten by the next.
    for row, of in each:
      response = _slice(row, jnp.minimum(of.before, p), t)
      out = put(out, response, of.response)
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
    return jax.vmap(lambda start: _slice(
        x, start, static.response))(lists.response)

  return on_each(local, x, lists)
