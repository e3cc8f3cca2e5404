"""Groups on their way from the data order to a train batch.

A group is begun, sampled whole in one wave, and then qualifies or is dropped.
Groups that qualify wait, first in first out, until B of them make a train
batch. `uniform` and `dynamic` differ only in the groups that qualify.
"""

import math
from typing import Callable, NamedTuple

import numpy as np

from jaxrl_llm.curriculum import order
from jaxrl_llm.types import Curriculum, GroupRequests, rows_of, RunSizes, Table


class GroupsState(NamedTuple):
  """State of the curriculum.

  Attributes:
    position: groups begun since the start of the run.
    waiting: [G] int64, groups that wait for a batch, in the order they are
      taken; -1 after them.
  """
  position: int
  waiting: np.ndarray


def make(
    sizes: RunSizes, qualifies: Callable[[Table, np.ndarray], np.ndarray], *,
    always: bool, max_rounds: int | None = None) -> Curriculum:
  """Makes a curriculum that samples each group whole, once.

  Args:
    sizes: numbers of problems, groups and samples, and lengths.
    qualifies: (table, rows [P, n] of the groups that have been sampled, -1
      where a sample is not valid) -> [P] bool, groups to train on.
    always: whether every group qualifies, whatever its rewards. No group then
      waits if B divides the groups of a wave.
    max_rounds: most batches taken in a wave; the groups beyond them are
      dropped. None for all that are full.

  Returns:
    The curriculum.
  """
  batch, prompts = sizes.batch, sizes.prompts
  together = sizes.together or prompts
  # Fewer than B groups wait after a wave, since whole batches are taken. If all
  # qualify, their number is a multiple of gcd(B, P).
  even = always and not sizes.together
  capacity = batch - (math.gcd(batch, prompts) if even else 1)
  most = (capacity + together) // batch
  most = most if max_rounds is None else min(most, max_rounds)

  def padded(groups):
    return np.pad(groups, (0, capacity - len(groups)), constant_values=-1)

  def present(state):
    return state.waiting[state.waiting >= 0]

  def init():
    return GroupsState(0, padded(np.zeros(0, np.int64)))

  def propose(state):
    group = state.position + np.arange(prompts)
    problem = order.indices(
        sizes.problems, seed=sizes.seed, position=state.position,
        count=prompts)
    return state._replace(position=state.position + prompts), GroupRequests(
        group=group, problem=problem.astype(np.int32),
        first=np.zeros(prompts, np.int32),
        count=np.full(prompts, sizes.samples, np.int32),
        probe=np.ones(prompts, bool))

  def update(state, ask, table, signal, gain):
    del signal, gain
    good = np.asarray(
        qualifies(table, rows_of(table, ask.group, sizes.samples)))
    if good.shape != ask.group.shape or good.dtype != bool:
      raise ValueError(
          f'`qualifies` of the curriculum returned {good.dtype} of the shape '
          f'{good.shape} for {len(ask.group)} groups: return a bool for each.')
    return state._replace(
        waiting=np.concatenate([present(state), ask.group[good]]))

  def take(state):
    groups = present(state)
    rounds = min(len(groups) // batch, most)
    taken = [groups[i * batch:(i + 1) * batch] for i in range(rounds)]
    rest = groups[rounds * batch:]
    if rounds == max_rounds:
      rest = rest[:0]
    return state._replace(waiting=padded(rest)), taken

  return Curriculum(
      init=init, propose=propose, update=update, take=take, holds=present,
      capacity=capacity, max_prompts=prompts,
      max_requests=prompts * sizes.samples,
      max_rounds=most, stale=capacity > 0,
      min_count=sizes.samples)
