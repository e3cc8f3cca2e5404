"""Made-up tables of rollouts, and the names of their rows."""

from typing import Any

import numpy as np

from jaxrl_llm.types import Table

# Columns of a valid row that no round was made for, with their types.
_FRESH = dict(
    problem=(0, np.int32), policy_step=(0, np.int32), reward=(0, np.float32),
    valid=(True, bool), length=(1, np.int32), truncated=(False, bool),
    trained=(False, bool), advantage=(np.nan, np.float32),
    group_mean=(np.nan, np.float32), group_std=(np.nan, np.float32),
    entropy=(0, np.float32), clip_share=(0, np.float32), usage=(0, np.int32),
    round=(-1, np.int32), probe=(True, bool))


def table(group: Any, sample: Any, **columns: Any) -> Table:
  """Makes a table of fresh, valid rows with changed columns.

  Args:
    group: [C], -1 for a free row.
    sample: [C].
    **columns: a value per row, or one for all.
  """
  assert columns.keys() <= _FRESH.keys(), columns.keys()
  rows = len(group)
  return Table(
      group=np.array(group, np.int64).reshape(rows),
      sample=np.array(sample, np.int32).reshape(rows),
      **{name: np.full(rows, columns.get(name, value), kind)
         for name, (value, kind) in _FRESH.items()})


def names(made: Table, rows: Any) -> list[tuple[int, int] | None]:
  """Returns (group, sample) of each row, None for filler."""
  return [
      (int(made.group[row]), int(made.sample[row])) if row >= 0 else None
      for row in np.asarray(rows).reshape(-1)]
