"""Packing of rows into lists of tokens: planned on the host, run on devices.

A microbatch is a list of N tokens on each data shard: the responses of several
rows, then each of their prompts once. Everything but attention works on the
list. Every process knows the lengths of all rows, so that all of them make the
same plan; the devices gather the tokens.

A response begins with the last token of its prompt, which predicts its first
token, and lacks its own last token, which predicts nothing. A prompt lacks its
last token. So a response has as many columns as tokens. Three rows, of which
the first two have the prompt `p0 p1 p2`, the third `q0 q1`:

  column     0   1   2   3   4   5   6   7   8   9  10  11  12  13
  token     p2  a0  a1  p2  b0  q1  c0  c1  c2  p0  p1  q0   -   -
  predicts  a0  a1  a2  b0  b1  c0  c1  c2  c3   -   -   -   -   -
            row 0       row 1   row 2           prompts      free

The first part of the module is NumPy on the host, from lengths to a Plan. The
second part runs a plan on the devices: rows are put in the order of their lists
once; each microbatch then takes the next ones of each device. The number of
microbatches is traced, so that rows that are not needed cost nothing.

Metrics:
  update/real_tokens [share]: columns of the lists that hold a token
  update/real_tokens_limit [share]: the most that is possible where no list is
    shorter than the longest row
"""

import bisect
import collections
import dataclasses
import functools
from typing import Any, Callable, NamedTuple, Optional, Sequence

from flax import struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np

from jaxrl_llm import sharding
from jaxrl_llm.ops import ragged
from jaxrl_llm.sharding import collectives
from jaxrl_llm.types import Array, LearnerBatch

# Groups that are tried for the rest of a list when those before do not fit. All
# of them would make the time of a plan grow with the square of the batch.
_AHEAD = 16
# Columns in reach, at least, if two prompts fit into them: a chunk often holds
# the end of one group and the beginning of another.
_REACH = 32
_COPIES = 6  # keys and values of a chunk, as multiples of its own, at most
# Lengths of lists as shares of the longest: of a batch that is one microbatch,
# of several, of many, and of any where a list has room for few rows. With many,
# their number makes up for fewer lengths. So it does for rows without groups:
# all of them are needed, so that batches differ little.
_ONE = 1.0, 0.8, 0.64, 0.5, 0.4, 0.25
_SEVERAL, _MANY = (1.0, 0.9, 0.8, 0.6, 0.4), (1.0, 0.6)
_FEW_SLOTS = tuple(0.88 ** i for i in range(8))


@dataclasses.dataclass(frozen=True)
class ChunkLayout:
  """Sizes of attention over chunks of columns, for short rows and for CPUs.

  Attributes:
    chunk: C, columns of a chunk, a divisor of N.
    back: columns before a chunk that it attends to, a multiple of C; they and
      the chunk hold all of any response that ends in it.
    reach: columns that it attends to beside these: those with the prompts of
      its responses.
  """
  chunk: int
  back: int = 0
  reach: int = 0


@dataclasses.dataclass(frozen=True)
class RowLayout:
  """Sizes of attention over copies of rows, side by side, for any kernel.

  Attributes:
    firm: rows of a list whose attention is always computed; a list without more
      of them skips the others. None for all.
    short: most tokens of the responses of these others.
  """
  firm: Optional[int] = None
  short: int = 0


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Static sizes of lists. The model is compiled once for each.

  Attributes:
    columns: N, tokens of a list.
    places: R, most rows of a list.
    single: whether there is one microbatch; it needs no sum of gradients.
    layout: in which attention is computed.
  """
  columns: int
  places: int
  single: bool = False
  layout: ChunkLayout | RowLayout = RowLayout()

  @property
  def chunks(self) -> int:
    """Chunks of a list; 0 without chunks."""
    if isinstance(self.layout, RowLayout):
      return 0
    return self.columns // self.layout.chunk


# ---- On the host ----


def choose(
    *, tokens: int, max_prompt: int, max_response: int, samples: int,
    rows: int, chunks: bool, whole: bool = True,
    worth: int = 256) -> tuple[Sizes, ...]:
  """Chooses the sizes of lists for batches of a number of rows.

  Args:
    tokens: tokens of the longest list; a row of any length fits in any case.
    max_prompt: L.
    max_response: T.
    samples: rows with the same prompt.
    rows: most rows of a batch on a data shard.
    chunks: whether attention is computed in chunks.
    whole: whether all rows with the same prompt are in the same batch.
    worth: a program for fewer tokens, or for less than twice as many where
      there is one microbatch, takes longer to compile than it saves.

  Returns:
    Different sizes, the shortest first. Any rows fit into the last, if it
    allows several microbatches.
  """
  # The last token of a prompt is the first column of each response.
  prompt, groups = max_prompt - 1, rows // samples
  if rows % samples:  # A run of rows may begin and end inside a group.
    groups = min(rows, (rows - 2) // samples + 2)
  least, common = max_response + prompt, rows * max_response + groups * prompt
  layout = None
  # A length is compiled for; a coarse unit lets close ones be one program.
  unit = 1 << max((tokens // 64).bit_length() - 1, 0)
  if chunks:
    reach = prompt * max(min(2, _REACH // max(prompt, 1)), 1)
    layout = _chunks(max_response, reach)
    unit, least = layout.chunk, max(least, reach)
    common += groups * unit  # where a chunk ends early
  up = lambda n: -(-max(int(n), least) // unit) * unit
  longest = up(min(tokens, common))
  single = up(common) <= longest
  if single:
    shares = _ONE
  elif chunks:
    shares = _MANY if common >= 4 * longest or samples == 1 else _SEVERAL
  else:
    shares = _FEW_SLOTS
  least_worth = worth * (1 + single)
  kinds = {up(longest * share): single for share in shares
           if share == 1 or longest * share >= least_worth}

  if layout:  # A slot costs no attention.
    places = min(max(4 * longest // max_response, 1), rows)
  else:  # More than full rows, for short ones beside long ones elsewhere.
    firm = max(min(longest * rows // common, rows), 1)
    places = min(firm + max(firm // 4, 1), rows)
    layout = RowLayout(firm, min(-(-longest // places), max_response))
  sizes = [Sizes(columns, places, single, layout)
           for columns, single in sorted(kinds.items())]
  # Rows of a group may be in several batches, each with its prompt. These are
  # more than `common` counts, and one microbatch may not hold them.
  if single and not whole:
    sizes.append(dataclasses.replace(sizes[-1], single=False))
  return tuple(sizes)


def _chunks(max_response: int, reach: int) -> ChunkLayout:
  """Chooses the columns of a chunk, and of those before it that it needs.

  Few columns make few scores for each token, but many copies of keys and
  values.
  """
  chunk = -(-max_response // 8) * 4  # half of a response
  while True:
    back = -(-(max_response - 1) // chunk) * chunk
    if chunk + back + reach <= _COPIES * chunk:
      return ChunkLayout(chunk, back, reach)
    chunk *= 2


@struct.dataclass
class Plan:
  """Places of B rows in the lists of M microbatches on F data shards.

  Attributes:
    order: [F, Q] int32, rows of the batch in the order of their lists; B for
      none.
    response: [F, Q] int32, first column of each row's response.
    prompt: [F, Q] int32, first column of its prompt.
    owner: [F, Q] bool, whether it is the first row of the list with its prompt.
    first: [M, F] int32, place in `order` of the first row of each list.
    rows: [M, F] int32, rows of each list.
    reach: [M, F, chunks] int32, the first of the `ChunkLayout.reach` columns of
      each chunk: those with the prompts of its responses or, if it has prompts
      alone, those before `ChunkLayout.back`.
    count: [] int32, microbatches with a row.
    shares: name -> [] float32, shares of the lists; metrics of an update,
      without their prefix.
    sizes: static sizes.
  """
  order: Array
  response: Array
  prompt: Array
  owner: Array
  first: Array
  rows: Array
  reach: Array
  count: Array
  shares: dict[str, Array]
  sizes: Sizes = struct.field(pytree_node=False)


def head_columns(sizes: Sizes, max_response: int) -> int:
  """Returns the first columns of a list that hold all of its responses."""
  # A chunk may end early before each group.
  gap = sizes.layout.chunk - 1 if sizes.chunks else 0
  return min(sizes.columns, sizes.places * (max_response + gap))


class _Group(NamedTuple):
  """Rows with the same prompt.

  Attributes:
    before: tokens of the prompt without the last.
    rows: (tokens of the response, number of the row), the longest first.
  """
  before: int
  rows: list[tuple[int, int]]


class _List:
  """A list that is being filled.

  Attributes:
    sizes: static sizes.
    places: of each row in it: its number, the first columns of its response
      and of its prompt, this counted from the first of the prompts, and whether
      it is the first row of the list with its prompt.
    tokens: number of them.
    responses: columns for responses.
    prompts: columns for prompts.
    reach: of each chunk with responses, the first column of their prompts.
  """

  def __init__(self, sizes: Sizes):
    self.sizes = sizes
    self.places: list[tuple[int, int, int, bool]] = []
    self.tokens = self.responses = self.prompts = 0
    self.reach: list[int] = []
    self._chunk = getattr(sizes.layout, 'chunk', 0)
    self._firm = getattr(sizes.layout, 'firm', None)

  def take(self, group: _Group) -> list[tuple[int, int]]:
    """Takes rows of a group; returns those that do not fit."""
    start, new, rest, i = self.prompts, group.before, [], 0
    owner, column = True, self._first(start + group.before)
    while i < len(group.rows) and len(self.places) < self.sizes.places:
      room = self.sizes.columns - column - self.prompts - new
      if self._firm is not None and len(self.places) >= self._firm:
        room = min(room, self.sizes.layout.short)
      fits = bisect.bisect_left(group.rows, -room, i, key=lambda x: -x[0])
      rest += group.rows[i:fits]
      i = fits + 1
      if fits == len(group.rows):
        break
      length, row = group.rows[fits]
      self.places.append((row, column, start, owner))
      self.tokens += length + new
      column = self.responses = column + length
      self.prompts, new, owner = self.prompts + new, 0, False
      if self._chunk:
        chunks = -(-column // self._chunk)
        self.reach += [start] * (chunks - len(self.reach))
    return rest + group.rows[i:]

  def has_room(self, length: int) -> bool:
    """Returns whether a row of this length may fit, its prompt aside."""
    return len(self.places) < self.sizes.places and (
        self.responses + self.prompts + length <= self.sizes.columns)

  def _first(self, end: int) -> int:
    """Returns the first column for a response whose prompt ends at `end`.

    It is in another chunk if its prompt is not in reach of the last one.
    """
    chunk = self._chunk
    if not chunk or not self.responses % chunk or (
        end - self.reach[-1] <= self.sizes.layout.reach):
      return self.responses
    return -(-self.responses // chunk) * chunk


def _fill(groups: Sequence[_Group], sizes: Sizes, most: int) -> list[_List]:
  """Fills lists with groups, one after the other; stops above `most` lists."""
  todo, lists = collections.deque(groups), []
  # A list with less room than the shortest row is full.
  least = min((group.rows[-1][0] for group in groups), default=0)
  while todo and len(lists) <= most:
    current, left = _List(sizes), []
    while todo and len(left) < _AHEAD and current.has_room(least):
      group = todo.popleft()
      rest = current.take(group)
      if rest:
        left.append(group._replace(rows=rest))
    # In their order, so that the next list begins with the longest rows.
    todo.extendleft(reversed(left))
    lists.append(current)
  return lists


def _groups(
    prompt: np.ndarray, before: np.ndarray, length: np.ndarray,
) -> list[_Group]:
  """Returns the rows that have a response by prompt, the longest first."""
  # The longest first: short rows then fill the rest of a list.
  order = np.lexsort((-length, prompt))
  order = order[length[order] > 0]
  if not len(order):
    return []
  cuts = np.flatnonzero(np.diff(prompt[order])) + 1
  groups = [
      _Group(int(before[rows[0]]), [*zip(length[rows].tolist(), rows.tolist())])
      for rows in np.split(order, cuts)]
  return sorted(groups, key=lambda group: -group.rows[0][0])


def plan(
    prompt: np.ndarray, before: np.ndarray, length: np.ndarray, *,
    shards: int, sizes: Sequence[Sizes]) -> Plan:
  """Plans the microbatches of B rows.

  All lists are equally long. Of the sizes, those are taken with which the
  microbatches compute the fewest tokens, padding included.

  Args:
    prompt: [B] int, equal for rows with the same prompt.
    before: [B] int, tokens of each prompt without its last.
    length: [B] int, tokens of each response; 0 for a row that is not needed.
    shards: F.
    sizes: from `choose`. If the rows do not fit, several microbatches of the
      last size are taken: another program.

  Returns:
    The plan, in NumPy.
  """
  groups = _groups(prompt, before, length)
  tokens = int(length.sum()) + sum(group.before for group in groups)
  best = None
  # The fewest microbatches that are possible with each size, best first.
  bound = lambda s: max(-(-tokens // (s.columns * shards)), 1) * s.columns
  several = dataclasses.replace(sizes[-1], single=False)
  for size in (*sorted(sizes, key=lambda s: (bound(s), -s.columns)), several):
    if best is not None and (size is several or bound(size) >= best[0]):
      break
    most = 1 if size.single else len(length)
    if best is not None:
      # With more microbatches than that it cannot become the best: stop early.
      most = min(most, (best[0] - 1) // size.columns)
    lists = _fill(groups, size, most * shards)
    count = -(-len(lists) // shards)
    if count <= most:
      best = max(count, 1) * size.columns, size, lists
  _, size, lists = best
  longest = max((g.before + g.rows[0][0] for g in groups), default=1)
  return _placed(
      lists, len(length), shards, size, min(1, tokens / shards / longest))


def nothing(sizes: Sizes, *, rows: int, shards: int) -> Plan:
  """Returns a plan without rows, for the shapes of its arrays.

  Args:
    sizes: of the plan.
    rows: B.
    shards: F.
  """
  return _placed([], rows, shards, sizes, 0)


def _placed(
    lists: list[_List], rows: int, shards: int, sizes: Sizes,
    limit: float) -> Plan:
  """Deals lists to microbatches and shards; `limit` is of the real tokens.

  Lists with more rows come first. So no shard has more than R rows more than
  another one, whatever the number of microbatches, and Q = B / F + 2 R places
  suffice, of which the last R end the slice of the last list.
  """
  lists = sorted(lists, key=lambda x: -len(x.places))
  most = 1 if sizes.single else max(-(-rows // shards), 1)
  shape = shards, -(-rows // shards) + 2 * sizes.places
  order = np.full(shape, rows, np.int32)
  response, prompt = np.zeros((2, *shape), np.int32)
  owner = np.zeros(shape, bool)
  first, number = np.zeros((2, most, shards), np.int32)
  reach = np.zeros((most, shards, sizes.chunks), np.int32)
  if sizes.chunks:
    # A chunk with prompts alone attends to columns of prompts before it.
    chunk, back, width = dataclasses.astuple(sizes.layout)
    reach[:] = np.arange(sizes.chunks) * chunk - back - width
  used = [0] * shards
  for i, filled in enumerate(lists):
    m, f = divmod(i, shards)
    places = slice(used[f], used[f] + len(filled.places))
    row, start, of_prompt, is_owner = zip(*filled.places)
    order[f, places], response[f, places], owner[f, places] = (
        row, start, is_owner)
    # Prompts come after all responses, whose columns are known only now.
    prompt[f, places] = np.array(of_prompt) + filled.responses
    first[m, f], number[m, f] = used[f], len(filled.places)
    used[f] = places.stop
    reach[m, f, :len(filled.reach)] = (
        filled.responses + np.array(filled.reach, int))
  count = -(-len(lists) // shards)
  real = sum(x.tokens for x in lists) / max(count * shards * sizes.columns, 1)
  if sizes.chunks:
    # Clipped here: XLA moves a slice that would pass the end, without a word,
    # and the mask would then speak of other columns.
    reach = np.clip(reach, 0, max(sizes.columns - width, 0))
  return Plan(
      order, response, prompt, owner, first, number, reach,
      np.int32(count), dict(
          real_tokens=np.float32(real), real_tokens_limit=np.float32(limit)),
      sizes)


# ---- On the devices ----


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
  of_lists = P(None, 'data')
  specs = plan.replace(
      response=P('data'), prompt=P('data'), owner=P('data'), first=of_lists,
      rows=of_lists, reach=of_lists, count=P())

  @functools.partial(
      jax.shard_map, mesh=mesh, axis_names={'data'}, check_vma=False,
      in_specs=(specs, P('data'), P()), out_specs=(P(), P('data')))
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
