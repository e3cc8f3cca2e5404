"""Naive curricula and selections: lists of names, no arrays, no row numbers."""

import numpy as np


class Groups:
  """Groups that are sampled whole; see `curriculum.groups`.

  Attributes:
    waiting: groups that qualified and are in no batch yet.
  """

  def __init__(self, sizes, *, must_differ, max_rounds=None):
    self._sizes, self._must_differ = sizes, must_differ
    self._max_rounds = max_rounds
    self._begun = 0
    self.waiting = []

  def propose(self):
    """Returns (group, problem) of the next wave."""
    asked = []
    for _ in range(self._sizes.prompts):
      epoch, place = divmod(self._begun, self._sizes.problems)
      shuffled = np.random.default_rng(
          (self._sizes.seed, epoch)).permutation(self._sizes.problems)
      asked.append((self._begun, int(shuffled[place])))
      self._begun += 1
    return asked

  def update(self, rewards):
    """Takes {group: [reward, None where it is not valid]} of a wave."""
    for group, values in rewards.items():
      distinct = {value for value in values if value is not None}
      if len(distinct) > 1 or not self._must_differ:
        self.waiting.append(group)

  def take(self):
    """Returns the batches that are full; drops the groups beyond the most."""
    taken = []
    while len(self.waiting) >= self._sizes.batch:
      taken.append([
          self.waiting.pop(0) for _ in range(self._sizes.batch)])
      if len(taken) == self._max_rounds:
        self.waiting = []
    return taken


class Replay:
  """Names of the rows of the last rounds; see `selection.replay`."""

  def __init__(self, rounds):
    self._rounds = rounds
    self._batches = []  # of each round, all of them

  def begin(self, names):
    """Begins a round with the valid rows of its batch."""
    self._batches.append(sorted(names))

  def buffer(self):
    """Returns {name: rounds since its own}, the oldest first."""
    age = min(self._rounds, len(self._batches))
    found = {}
    while age:
      found.update(dict.fromkeys(self._batches[-age], age - 1))
      age -= 1
    return found

  def held(self):
    """Returns the names that the next round still needs."""
    return {name for name, age in self.buffer().items()
            if age + 1 < self._rounds}
