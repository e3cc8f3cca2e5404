"""The plain curriculum: every problem once per epoch, in a shuffled order."""

from typing import NamedTuple

import numpy as np

from jaxrl_llm.curriculum import order


class State(NamedTuple):
  """position: problems handed out since the run began."""
  position: int


def init() -> State:
  """A curriculum that has handed out nothing."""
  return State(position=0)


def propose(
    state: State, *, problems: int, count: int, seed: int,
) -> tuple[State, np.ndarray]:
  """Picks the problems of the next step.

  Args:
    state: what was handed out before.
    problems: size of the training set.
    count: how many to pick.
    seed: fixes the order of every epoch.

  Returns:
    The new state and [count] int indices into the training set.
  """
  picked = order.indices(
      problems, seed=seed, position=state.position, count=count)
  return State(position=state.position + count), picked


def update(
    state: State, problem_ids: np.ndarray, rewards: np.ndarray) -> State:
  """Learns nothing from rewards [P, N] of problems [P]."""
  del problem_ids, rewards
  return state
