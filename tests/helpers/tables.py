"""Made-up tables of rollouts, and the names of their rows."""

from typing import Any

import jax
import numpy as np

from jaxrl_llm.types import RunSizes, Table

# Columns of a valid row that no round was made for, with their types.
_FRESH = dict(
    problem=(0, np.int32), policy_step=(0, np.int32), reward=(0, np.float32),
    valid=(True, bool), prompt_length=(1, np.int32), length=(1, np.int32),
    generated=(1, np.int32), truncated=(False, bool), trained=(False, bool),
    advantage=(np.nan, np.float32), group_mean=(np.nan, np.float32),
    group_std=(np.nan, np.float32), entropy=(0, np.float32),
    clip_share=(0, np.float32), usage=(0, np.int32),
    round=(-1, np.int32), probe=(True, bool), shard=(0, np.int32))


def table(group: Any, sample: Any, **columns: Any) -> Table:
  """Makes a table of fresh, valid rows with changed columns.

  Args:
    group: [C], -1 for a free row.
    sample: [C].
    **columns: a value per row, or one for all.
  """
  assert columns.keys() <= _FRESH.keys(), columns.keys()
  rows = len(group)
  if 'length' in columns:  # all of which the model wrote
    columns.setdefault('generated', columns['length'])
  return Table(
      group=np.array(group, np.int64).reshape(rows),
      sample=np.array(sample, np.int32).reshape(rows),
      **{name: np.full(rows, columns.get(name, value), kind)
         for name, (value, kind) in _FRESH.items()})


def sizes_of(
    batch: int, prompts: int, samples: int, problems: int, seed: int = 3,
) -> RunSizes:
  """Returns the sizes of a run."""
  return RunSizes(
      problems=problems, seed=seed, batch=batch, samples=samples,
      prompts=prompts)


def of_rewards(
    rng: np.random.Generator, rewards: dict[int, list[float | None]],
    first: dict[int, int] | None = None) -> Table:
  """Makes a table of groups' rewards in any order, with free rows.

  Args:
    rng: of the order, and of the rewards that must not count.
    rewards: rewards of each group; None where the verification failed.
    first: number of each group's first sample, if that is not 0.
  """
  rows = [(group, j, value) for group, values in rewards.items()
          for j, value in enumerate(values, (first or {}).get(group, 0))]
  rows += [(-1, 0, None)] * int(rng.integers(3))
  rows = [rows[i] for i in rng.permutation(len(rows))]
  return table(
      [row[0] for row in rows], [row[1] for row in rows],
      reward=[rng.random() if row[2] is None else row[2] for row in rows],
      valid=[row[2] is not None for row in rows])


def form(state: Any) -> list[Any]:
  """Returns the shapes and types of a state."""
  return [(np.shape(x), np.asarray(x).dtype) for x in jax.tree.leaves(state)]


def names(made: Table, rows: Any) -> list[tuple[int, int] | None]:
  """Returns (group, sample) of each row, None for filler."""
  return [
      (int(made.group[row]), int(made.sample[row])) if row >= 0 else None
      for row in np.asarray(rows).reshape(-1)]
