"""Replay: rows of the last L rounds, first in first out.

A round adds the valid rows of its batch to the buffer and removes those that
are L rounds old. `replay` trains on the whole buffer in every round, `random`
on some rows of it, `newest` on its newest rows, `largest_advantage` on those
with the largest |advantage|. A row that comes back has a ratio against the
policy that wrote it, since its old log-probs are kept.
"""

from typing import Annotated, Callable, Literal, NamedTuple

import numpy as np

from jaxrl_llm.types import RunSizes, Selection, Table

_Count = Annotated[int, '[1, inf)']
_Keep = Annotated[float, '(0, 1]']
_Rows = Annotated[int | None, '[1, inf)']


class Scope(NamedTuple):
  """Candidates of a round, and the number of rows that it picks.

  Attributes:
    rounds: L, rounds that a row stays in the buffer; 1 if only those of the
      batch are candidates.
    rows: K, rows of a round.
    share: rows picked of each group; None for `rows` of all candidates.
  """
  rounds: int
  rows: int
  share: int | None


def scope_of(
    sizes: RunSizes, name: str, *, scope: str, rounds: int, keep: float,
    pool: bool) -> Scope:
  """Makes the scope of a selection that picks the best rows.

  Args:
    sizes: numbers of problems, groups and samples, and lengths.
    name: of the selection, for the error.
    scope: 'global', as many rows as one batch has of the last batches; or
      'intra_group', a share of each group.
    rounds: L, with 'global'.
    keep: share of the responses, rounded down, with 'intra_group'.
    pool: whether that share is of all groups together.

  Raises:
    ValueError: `keep` leaves no row to pick.
  """
  batch, n = sizes.batch, sizes.samples
  if scope == 'global':
    return Scope(rounds, batch * n, None)
  of = batch * n if pool else n  # A pool or a group gives floor(p n) rows.
  share = int(keep * of + 1e-9)  # .29 of 100 is 29, though .29 is a bit less.
  if not share:
    raise ValueError(
        f'{name}.keep={keep} of {of} responses is less than one: use at least '
        f'{1 / of:.3g}.')
  return Scope(1, share, None) if pool else Scope(1, batch * share, share)


class ReplayState(NamedTuple):
  """State of the selection.

  Attributes:
    rounds: rounds done.
  """
  rounds: int


def buffered(table: Table, rounds: int, last: int) -> np.ndarray:
  """Returns [C] bool, the valid rows of the `last` latest of `rounds` rounds.
  """
  return table.valid & (table.round >= 0) & (table.round >= rounds - last)


def oldest_first(table: Table, there: np.ndarray) -> np.ndarray:
  """Returns the numbers of rows, sorted by round, group and sample."""
  rows = np.flatnonzero(there)
  return rows[np.lexsort(
      (table.sample[rows], table.group[rows], table.round[rows]))]


def _make(
    sizes: RunSizes, rounds: int, rows: int | None,
    pick: Callable[[Table, np.ndarray, np.random.Generator], np.ndarray],
) -> Selection:
  """Makes a selection of at most `rows` rows from the last `rounds` rounds.

  None stands for the rows of one batch. `pick` is (table, candidates,
  generator) -> candidates in another order, of which the first `rows` are
  trained on.
  """
  batch_rows = sizes.batch * sizes.samples
  rows = min(rows or batch_rows, rounds * batch_rows)

  def select(state, table, batch, key):
    del batch
    state = ReplayState(state.rounds + 1)
    there = oldest_first(table, buffered(table, state.rounds, rounds))
    picked = pick(table, there, np.random.default_rng(key))[:rows]
    return state, np.pad(
        picked, (0, rows - len(picked)), constant_values=-1)

  return Selection(
      init=lambda key: ReplayState(0),
      feedback=lambda state, probe: state,
      select=select,
      holds=lambda state, table: buffered(table, state.rounds, rounds - 1),
      capacity=(rounds - 1) * batch_rows, rows=rows, stale=rounds > 1)


def replay(
    sizes: RunSizes, *, rounds: _Count = 1, rows: _Rows = None) -> Selection:
  """Makes the selection of every row in the buffer, the oldest first.

  Args:
    sizes: numbers of problems, groups and samples, and lengths.
    rounds: batches whose rows can be selected (1: only the round's own).
    rows: rows of a round, the oldest if there are more (none: all).
  """
  return _make(
      sizes, rounds, rows or rounds * sizes.batch * sizes.samples,
      lambda table, there, rng: there)


def random(
    sizes: RunSizes, *, rounds: _Count = 1, rows: _Rows = None) -> Selection:
  """Makes the selection of rows at random, without replacement.

  Args:
    sizes: numbers of problems, groups and samples, and lengths.
    rounds: batches whose rows can be selected (1: only the round's own).
    rows: rows of a round (none: as many as one batch has).
  """
  return _make(
      sizes, rounds, rows, lambda table, there, rng: rng.permutation(there))


def newest(
    sizes: RunSizes, *, rounds: _Count = 1, rows: _Rows = None) -> Selection:
  """Makes the selection of the newest rows; ties are broken at random.

  Args:
    sizes: numbers of problems, groups and samples, and lengths.
    rounds: batches whose rows can be selected (1: only the round's own).
    rows: rows of a round (none: as many as one batch has).
  """
  def pick(table, there, rng):
    mixed = rng.permutation(there)
    return mixed[np.argsort(-table.round[mixed], kind='stable')]

  return _make(sizes, rounds, rows, pick)


def largest_advantage(
    sizes: RunSizes, *, scope: Literal['global', 'intra_group'] = 'global',
    rounds: _Count = 2, keep: _Keep = 0.3, pool: bool = False) -> Selection:
  """Makes the selection of the rows with the largest |advantage|.

  It learns nothing: the baseline for `cbs`, with the same candidates and as
  many rows. Of rows with the same |advantage| the newest is picked, and of
  these one at random.

  Args:
    sizes: numbers of problems, groups and samples, and lengths.
    scope: what is picked from; global (the last rounds batches; as many rows as
      one has) or intra_group (a share keep of each group).
    rounds: batches whose rows can be picked, with scope=global.
    keep: share of the responses to train on, rounded down, with
      scope=intra_group.
    pool: with scope=intra_group, pick that share of all groups together.
  """
  made = scope_of(
      sizes, 'largest_advantage', scope=scope, rounds=rounds, keep=keep,
      pool=pool)

  def pick(table, there, rng):
    there = rng.permutation(there)
    there = there[np.lexsort(
        (-table.round[there], -np.abs(table.advantage[there])))]
    if made.share is None:
      return there
    groups = table.group[there]
    return np.concatenate([np.zeros(0, np.int64), *(
        there[groups == group][:made.share] for group in np.unique(groups))])

  return _make(sizes, made.rounds, made.rows, pick)
