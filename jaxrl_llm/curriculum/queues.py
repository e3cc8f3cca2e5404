"""Queues of a fixed size: NamedTuples of columns, of which one is `group`.

Free places have the group -1 and stand behind the others, so that the state of
a curriculum always has the same shapes.
"""

from typing import Any, TypeVar

import numpy as np

Queue = TypeVar('Queue', bound=Any)


def empty(kind: type[Queue], size: int, **types: type) -> Queue:
  """Makes a queue of free places.

  Args:
    kind: NamedTuple of columns.
    size: places.
    **types: types of columns that are not int64.
  """
  return padded(kind(*(
      np.zeros(0, types.get(name, np.int64)) for name in kind._fields)), size)


def padded(queue: Queue, size: int) -> Queue:
  """Adds free places up to a size."""
  free = size - len(queue.group)
  return type(queue)(
      *(np.pad(column, (0, free), constant_values=-(name == 'group'))
        for name, column in queue._asdict().items()))


def present(queue: Queue) -> Queue:
  """Returns a copy without the free places."""
  return some(queue, queue.group >= 0)


def some(queue: Queue, which: Any) -> Queue:
  """Returns the places that an index or a mask selects."""
  return type(queue)(*(column[which] for column in queue))


def joined(queue: Queue, new: Queue) -> Queue:
  """Returns the places of `queue`, then those of `new`."""
  return type(queue)(*map(np.concatenate, zip(queue, new)))
