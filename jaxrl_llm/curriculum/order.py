"""The order in which a run meets its problems, with no state but a count."""

import functools

import numpy as np


@functools.lru_cache(maxsize=4)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
  return np.random.default_rng((seed, epoch)).permutation(n)


def indices(n: int, *, seed: int, position: int, count: int) -> np.ndarray:
  """The next items of an endless, reshuffled run through n of them.

  Epoch e visits every item once, in a permutation drawn from (seed, e), so
  what comes at a position depends on nothing else: a run that is resumed at
  `position` goes on exactly where it was.

  Args:
    n: number of items.
    seed: picks the run's permutations; at least 0.
    position: items already taken since the run began.
    count: items wanted; they may span several epochs.

  Returns:
    [count] int64 indices below n.

  Raises:
    ValueError: there are no items, or a negative argument.
  """
  if n < 1:
    raise ValueError(f'cannot order n={n} items: the task has no problems.')
  if min(seed, position, count) < 0:
    raise ValueError(
        f'seed={seed}, position={position} and count={count} must all be at '
        'least 0.')
  epochs = range(position // n, -(-(position + count) // n))
  items = [_permutation(n, seed, e) for e in epochs]
  start = position % n
  return np.concatenate([np.empty(0, np.int64), *items])[start:start + count]
