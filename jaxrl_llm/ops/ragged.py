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
from jax.sharding import PartitionSpec as P

Array = jax.Array

_slice = jax.lax.dynamic_slice_in_dim
_put = jax.lax.dynamic_update_slice_in_dim


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


class ListColumns(NamedTuple):
  """Content of each column of lists.

  Attributes:
    row: [F, N] int32, row of the list whose token it is; 0 for none.
    position: [F, N] int32, place of the token in its row; 0 for none.
    response: [F, N] bool, whether it belongs to a response.
    sequence: [F, N] int32, number of the response or prompt; -1 for none.
    parent: [F, N] int32, number of its prompt; -1 for none.
  """
  row: Array
  position: Array
  response: Array
  sequence: Array
  parent: Array


def columns(lists: Lists, count: int) -> ListColumns:
  """Returns the content of the `count` columns of each device's list."""
  def local(lists):
    column, rows = jnp.arange(count), jnp.arange(len(lists.length))

    def holder(start, length):
      inside = (column >= start[:, None]) & (
          column < (start + length)[:, None])
      return jnp.any(inside, 0), jnp.argmax(inside, 0)

    response, row = holder(lists.response, lists.length)
    prompt, owner = holder(
        lists.prompt, jnp.where(lists.owner, lists.before, 0))
    row = jnp.where(response, row, owner)
    some = response | prompt
    position = column + jnp.where(
        response, lists.before[row] - lists.response[row], -lists.prompt[row])
    # An empty prompt begins where the next one does.
    parent = jnp.where(
        some & (lists.before[row] > 0), len(rows) + lists.prompt[row], -1)
    return jax.tree.map(lambda x: x[None], ListColumns(
        jnp.where(some, row, 0), jnp.where(some, position, 0), response,
        jnp.where(response, row, parent), parent))

  return on_each(local, lists)


def tokens(x: Array, columns: ListColumns, ahead: int = 0) -> Array:
  """Puts tokens of rows into lists.

  Args:
    x: [B, S, ...], rows; any values.
    columns: of the lists.
    ahead: places between the token that is put and that of the column.

  Returns:
    [F, N, ...]; any tokens in columns without one.
  """
  def local(x, columns):
    place = jnp.clip(columns.position[0] + ahead, 0, x.shape[1] - 1)
    return x[columns.row[0], place][None]

  return on_each(local, x, columns)


def response_tokens(x: Array, columns: ListColumns, lists: Lists) -> Array:
  """Puts values of response tokens [B, T, ...] into lists [F, N, ...]."""
  def local(x, columns, lists):
    row = columns.row[0]
    place = columns.position[0] - lists.before[row]
    return x[row, jnp.clip(place, 0, x.shape[1] - 1)][None]

  return on_each(local, x, columns, lists)


def _wide(x, width):
  """Pads the second axis of x by `width`, so that every slice exists."""
  return jnp.pad(x, ((0, 0), (0, width)) + ((0, 0),) * (x.ndim - 2))


def on_each(fn, *args):
  """Calls fn on each device's part of arrays that are split over `fsdp`."""
  if 'fsdp' in jax.sharding.get_abstract_mesh().auto_axes:
    fn = jax.shard_map(
        fn, axis_names={'fsdp'}, check_vma=False, in_specs=P('fsdp'),
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
  taken = (column >= begin) & (
      column < (lists.before + lists.length)[:, None])
  return jnp.where(taken.reshape(*taken.shape, *[1] * (x.ndim - 2)), x, 0)


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
