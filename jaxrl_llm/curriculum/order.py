"""Order of the problems in a run; its only state is a position."""

import functools

import numpy as np


@functools.lru_cache(maxsize=4)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
  return np.random.default_rng((seed, epoch)).permutation(n)


def indices(n: int, *, seed: int, position: int, count: int) -> np.ndarray:
  """Returns the next indices of an endless, reshuffled pass over n items.

  Epoch e visits every item once, in a permutation drawn from (seed, e). The
  item at a position depends on nothing else, so a run that is resumed at
  `position` continues exactly.

  Args:
    n: number of items.
    seed: seed of the permutations; at least 0.
    position: number of items taken since the start of the run.
    count: number of items to return; they may span several epochs.

  Returns:
    [count] int64 indices below n.

  Raises:
    ValueError: there are no items, or an argument is negative.
  """
  if min(seed, position, count) < 0:
    raise ValueError(
        f'seed={seed}, position={position} and count={count} must all be at '
        'least 0.')
  return at(position + np.arange(count), n, seed)


def at(positions: np.ndarray, n: int, seed: int) -> np.ndarray:
  """Returns [P] int64, `indices` at any positions [P] since the start."""
  if n < 1:
    raise ValueError(f'cannot order n={n} items: the task has no problems.')
  return np.array([
      _permutation(n, seed, position // n)[position % n]
      for position in positions.tolist()], np.int64)
