"""The default selection: train on every rollout of the step, once."""

from typing import NamedTuple

import numpy as np


class State(NamedTuple):
  """An empty state."""


def init() -> State:
  """Returns the initial state."""
  return State()


def select(
    state: State, valid: np.ndarray, advantages: np.ndarray, *,
    drop_zero_advantage: bool) -> tuple[State, np.ndarray]:
  """Selects the rows to train on: all valid rows, or those with a signal.

  Args:
    state: the current state.
    valid: [R] bool, rows whose verification succeeded.
    advantages: [R].
    drop_zero_advantage: leave out rows whose advantage is 0, such as those of
      groups that are all right or all wrong. This is the dynamic sampling of
      DAPO (Yu et al., 2025, arXiv:2503.14476, section 3.2) without the refill.
      Rows left out take no time, no denominator counts them, and the entropy
      bonus does not act on them.

  Returns:
    The state, and the selected rows as [R] bool.
  """
  return state, valid & (advantages != 0.0) if drop_zero_advantage else valid


def update(state: State, advantages: np.ndarray) -> State:
  """Returns the state unchanged; advantages are [R], of the selected rows."""
  del advantages
  return state
