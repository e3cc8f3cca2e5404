"""Naive SPEED: lists of groups and of rewards, one prompt at a time."""

import math

import numpy as np


def mean(rewards):
  """Returns the mean of the valid rewards, None without one."""
  valid = [reward for reward in rewards if reward is not None]
  return sum(valid) / len(valid) if valid else None


def binomial(n, p, c):
  return math.comb(n, c) * p ** c * (1 - p) ** (n - c)


def rate_of_set(chosen, values, probability, n_cont):
  """Returns the signal per sample if the outcomes in `chosen` go on."""
  n_init = len(values) - 1
  return sum(probability[c] * values[c] for c in chosen) / (
      n_init + n_cont * sum(probability[c] for c in chosen))


def subsets(outcomes):
  """Yields every subset of range(outcomes)."""
  for bits in range(2 ** outcomes):
    yield [c for c in range(outcomes) if bits >> c & 1]


class Speed:
  """Screens groups, continues those that qualify, and fills batches.

  Attributes:
    accepted: groups that qualified and are not finished.
    finished: groups that wait for a batch.
    capacity: most of both together with the groups of a wave.
  """

  def __init__(self, sizes, n_init, qualifies, capacity, max_rounds):
    self._sizes, self._n_init, self._qualifies = sizes, n_init, qualifies
    self._rounds, self.capacity = max_rounds, capacity
    self._begun = self._flying = 0
    self._asked = set()
    self._rewards = {}
    self.accepted, self.finished = [], []

  def propose(self):
    """Returns (group, problem, first sample, samples) of the next wave."""
    waiting = len(self.accepted) + len(self.finished)
    asked = []
    for group in self.accepted:
      if group not in self._asked and len(asked) < self._sizes.prompts:
        self._asked.add(group)
        asked.append((
            group, self._problem(group), self._n_init,
            self._sizes.samples - self._n_init))
    if waiting + self._flying + self._sizes.prompts <= self.capacity:
      for _ in range(self._sizes.prompts):
        asked.append(
            (self._begun, self._problem(self._begun), 0, self._n_init))
        self._begun += 1
        self._flying += 1
    return asked

  def _problem(self, group):
    epoch, place = divmod(group, self._sizes.problems)
    return int(np.random.default_rng((self._sizes.seed, epoch)).permutation(
        self._sizes.problems)[place])

  def update(self, wave):
    """Takes [(group, first sample, [reward, None where not valid])]."""
    for group, first, rewards in wave:
      if first:
        self.accepted.remove(group)
        self.finished.append(group)
      else:
        self._flying -= 1
        if self._qualifies(mean(rewards)):
          self.accepted.append(group)

  def take(self):
    """Returns the batches that are full."""
    taken = []
    while len(self.finished) >= self._sizes.batch and (
        len(taken) < self._rounds):
      taken.append([
          self.finished.pop(0) for _ in range(self._sizes.batch)])
    return taken
