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

from jaxrl_llm.learner import prompts
from jaxrl_llm.models import attention
from jaxrl_llm.ops import ragged
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
      ValueError: a length is above the full one, or below 1.
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

  def static(self, length: int) -> ragged.Static:
    """Returns the sizes of lists of one of the static lengths."""
    return ragged.Static(
        length, min(self.prompt, length), min(self.response, length))


def facts(batch: LearnerBatch, needed: Array) -> ragged.Rows:
  """Returns the facts about the rows of a batch; `needed` is [B] bool."""
  prompt = batch.prompt
  if prompt is None:
    prompt = jnp.arange(len(needed))
  return ragged.Rows(prompt, batch.prompt_length - 1,
                     jnp.where(needed, batch.response_length, 0))


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


def deal(rows: ragged.Rows, *, shards: int, sizes: Sizes) -> Deal:
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


def inputs(
    tokens: Array, lists: ragged.Lists, static: ragged.Static,
) -> dict[str, Any]:
  """Returns the arguments of `transformer.forward` for lists.

  Args:
    tokens: [B, L + T] int32, each row's prompt, directly followed by its
      response.
    lists: places of the rows.
    static: sizes.
  """
  columns = static.prompt + static.response
  positions = jnp.broadcast_to(jnp.arange(columns), (len(tokens), columns))
  listed = lambda x: ragged.as_list(x, lists, static)
  layout = attention.Layout(
      lambda x: ragged.rows(x, lists, static), listed, columns)
  return dict(tokens=listed(tokens[:, :columns]), positions=listed(positions),
              layout=layout)


def head_columns(sizes: Sizes, static: ragged.Static) -> int:
  """Returns H, the first columns of lists, which hold all responses."""
  return min(static.columns, sizes.slots * static.response)


def targets(
    tokens: Array, ids: Optional[Array], lists: ragged.Lists,
    static: ragged.Static, count: int,
) -> tuple[Array, Optional[Array], Array]:
  """Returns what the head of the model needs for lists.

  Args:
    tokens: as for `inputs`.
    ids: [B, >= T, K] int32, of response tokens, or None.
    lists: places of the rows.
    static: sizes.
    count: H, see `head_columns`.

  Returns:
    [F, H] int32, the token after each one; [F, H, K], the ids of that token;
    and [F, H] bool, whether it belongs to a response. The first two hold any
    numbers elsewhere.
  """
  columns = static.prompt + static.response
  listed = lambda x: ragged.as_list(x, lists, static)[:, :count]
  if ids is not None:
    token = jnp.arange(columns) - lists.before[:, None]
    ids = listed(jnp.take_along_axis(ids, token[..., None], 1, mode='clip'))
  following = listed(tokens[:, 1:columns + 1])
  total = ragged.on_each(lambda x: jnp.sum(x, keepdims=True), lists.length)
  return following, ids, jnp.arange(count) < total[:, None]
