"""Rows of rollouts by column: one declaration of what a row carries.

A class of `Rows` declares its columns: name, type, axes, filler and maker. Free
rows, shapes for programs, joins, batches and checkpoints are made from these
declarations. So a new array of a row is declared here once, made by its
producer and read by its consumer.
"""

from typing import (
  Any,
  Callable,
  ClassVar,
  Collection,
  Iterable,
  Mapping,
  NamedTuple,
)

import jax
import numpy as np


class Column(NamedTuple):
  """Declaration of a column.

  Attributes:
    type: NumPy type; None where the run decides it.
    axes: letters of its axes after that of the rows, see `types`.
    fill: value in a free row.
    maker: what makes it, in the runs that need it: sampler, verifier,
      environment, score (`LearnerPrograms.score`), advantage or run. '' is for
      columns that all rows have.
    player: of a score, the player whose pass it takes, beside that of the
      policy. It is the player's log-probs, or made of them.
    frozen: whether it is of that player alone, as it is when RL starts.
  """
  type: Any
  axes: str = ''
  fill: Any = 0
  maker: str = ''
  player: str = ''
  frozen: bool = False


def column(type: Any, axes: str = '', fill: Any = 0, **more: Any) -> Any:
  """Declares a column in a class of `Rows`; the arguments are of `Column`."""
  return Column(type, axes, fill, **more)


class Rows:
  """Rows of named columns, a tree of arrays whose first axis is the rows.

  An attribute is the column of its name; None if these rows lack it.

  Attributes:
    columns: name to array [C, ...], by name.
  """
  __slots__ = ('columns',)
  declared: ClassVar[dict[str, Column]] = {}

  def __init_subclass__(
      cls, also: Iterable[type['Rows']] = (), wide: bool = False):
    """Collects the declarations of a class.

    Args:
      also: classes whose columns its rows may have, too.
      wide: of these, only columns with axes after that of the rows.
    """
    own = {k: v for k, v in vars(cls).items() if isinstance(v, Column)}
    for name in own:
      delattr(cls, name)
    cls.declared = own
    for other in also:
      cls.declared = {
          name: column._replace(maker=column.maker or 'run')
          for name, column in other.declared.items()
          if column.axes or not wide} | cls.declared
    jax.tree_util.register_pytree_with_keys(
        cls, lambda rows: (
            [(jax.tree_util.GetAttrKey(k), v) for k, v in rows.columns.items()],
            tuple(rows.columns)),
        lambda names, values: _of(cls, dict(zip(names, values))),
        lambda rows: (rows.columns.values(), tuple(rows.columns)))

  def __init__(self, **columns: Any):
    """Makes rows of these columns; None leaves one out."""
    self.columns = {
        k: columns[k] for k in sorted(columns) if columns[k] is not None}

  def __getattr__(self, name: str) -> Any:
    if name in type(self).declared:
      return self.columns.get(name)
    raise AttributeError(f'{type(self).__name__} has no column {name}')

  def __eq__(self, other: object) -> bool:
    return isinstance(other, type(self)) and self.columns == other.columns

  def __repr__(self) -> str:
    said = ', '.join(f'{name}={x!r}' for name, x in self.columns.items())
    return f'{type(self).__name__}({said})'

  def replace(self, **changes: Any) -> Any:
    """Returns the rows with other or further columns; None removes one."""
    return type(self)(**{**self.columns, **changes})

  def at(self, rows: np.ndarray) -> Any:
    """Returns the rows of numbers [...]; 0 or False where a number is -1."""
    def taken(x):
      if not len(x):  # no row at all
        return np.zeros((*rows.shape, *x.shape[1:]), x.dtype)
      real = (rows >= 0).reshape(*rows.shape, *[1] * (x.ndim - 1))
      return np.where(real, x[rows], np.zeros((), x.dtype))

    return jax.tree.map(taken, self)

  def without(self, maker: str) -> Any:
    """Returns the rows without the columns of a maker."""
    return self.replace(**{
        name: None for name in self.columns
        if self.declared[name].maker == maker})

  def only(self, names: Collection[str]) -> Any:
    """Returns the rows with these columns and those that all rows have."""
    return self.replace(**{
        name: None for name in self.columns
        if self.declared[name].maker and name not in names})

  @classmethod
  def free(
      cls, rows: int, axes: Mapping[str, int],
      needed: Mapping[str, Any],
      make: Callable[..., Any] = np.full) -> Any:
    """Makes free rows: those that all rows have, and those that are needed.

    Args:
      rows: C.
      axes: letter to the length of an axis.
      needed: name of each further column to its type, None for the declared
        one. Names of other classes are left out.
      make: (shape, filler, type) -> array, or anything that stands for it.
    """
    return cls(**{
        name: make((rows, *(axes[a] for a in column.axes)), column.fill,
                   needed.get(name) or column.type)
        for name, column in cls.declared.items()
        if not column.maker or name in needed})


def _of(cls: type[Rows], columns: dict[str, Any]) -> Rows:
  """Makes rows of columns that may be anything, such as specs of a tree."""
  rows = object.__new__(cls)
  rows.columns = columns
  return rows
