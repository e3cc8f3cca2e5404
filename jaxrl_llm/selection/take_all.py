"""The plain selection: train on every rollout of the step, once."""

from typing import NamedTuple

import numpy as np


class State(NamedTuple):
  """Nothing to remember."""


def init() -> State:
  """An empty state."""
  return State()


def select(
    state: State, valid: np.ndarray) -> tuple[State, np.ndarray]:
  """Chooses the rows to train on.

  Args:
    state: this module's.
    valid: [R] bool, rows whose verification succeeded.

  Returns:
    The state and [R] bool, the rows chosen: all valid ones.
  """
  return state, valid


def update(state: State, advantages: np.ndarray) -> State:
  """Learns nothing from the advantages [R] of the rows chosen."""
  del advantages
  return state
