"""Replay: rows of the last L rounds, first in first out.

A round adds the valid rows of its batch to the buffer and removes those that
are L rounds old. `replay` trains on the whole buffer in every round, `random`
on some rows of it, `newest` on its newest rows. A row that comes back has a
ratio against the policy that wrote it, since its old log-probs are kept.
"""

from typing import Annotated, Callable, NamedTuple

import numpy as np

from jaxrl_llm.types import RunSizes, Selection, Table

_Count = Annotated[int, '[1, inf)']
_Rows = Annotated[int | None, '[1, inf)']


class State(NamedTuple):
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
    sizes: RunSizes, rounds: int, rows: int,
    pick: Callable[[Table, np.ndarray, np.random.Generator], np.ndarray],
) -> Selection:
  """Makes a selection of at most `rows` rows from the last `rounds` rounds.

  `pick` is (table, candidates, generator) -> candidates in another order, of
  which the first `rows` are trained on.
  """
  rows = min(rows, rounds * sizes.batch * sizes.samples)

  def select(state, table, batch, key):
    del batch
    state = State(state.rounds + 1)
    there = oldest_first(table, buffered(table, state.rounds, rounds))
    picked = pick(table, there, np.random.default_rng(key))[:rows]
    return state, np.pad(
        picked, (0, rows - len(picked)), constant_values=-1)

  return Selection(
      init=lambda key: State(0),
      feedback=lambda state, probe: state,
      select=select,
      holds=lambda state, table: buffered(table, state.rounds, rounds - 1),
      capacity=(rounds - 1) * sizes.batch * sizes.samples, rows=rows,
      stale=rounds > 1)


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
      sizes, rounds, rows or sizes.batch * sizes.samples,
      lambda table, there, rng: rng.permutation(there))


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

  return _make(sizes, rounds, rows or sizes.batch * sizes.samples, pick)
