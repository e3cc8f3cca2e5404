"""The plain selection: train on every rollout of the step, once."""

from typing import NamedTuple

import numpy as np


class State(NamedTuple):
  """Nothing to remember."""


def init() -> State:
  """An empty state."""
  return State()


def select(
    state: State, valid: np.ndarray, advantages: np.ndarray, *,
    drop_zero_advantage: bool) -> tuple[State, np.ndarray]:
  """Chooses the rows to train on: all valid ones, or those that teach.

  Args:
    state: this module's.
    valid: [R] bool, rows whose verification succeeded.
    advantages: [R].
    drop_zero_advantage: leave out rows whose advantage is 0, such as those of
      groups that are all right or all wrong: dynamic sampling of DAPO (Yu et
      al., 2025, arXiv:2503.14476, section 3.2) without the refill. They cost no
      time then, no denominator counts them, and the entropy bonus acts only
      where there is something to learn.

  Returns:
    The state and [R] bool, the rows chosen.
  """
  return state, valid & (advantages != 0.0) if drop_zero_advantage else valid


def update(state: State, advantages: np.ndarray) -> State:
  """Learns nothing from the advantages [R] of the rows chosen."""
  del advantages
  return state
