"""Curriculum of a user: samples half of each group, and the rest a step later.
"""

from typing import NamedTuple

import numpy as np

from jaxrl_llm.curriculum import order
from jaxrl_llm.types import Curriculum, GroupRequests


class State(NamedTuple):
  """Groups begun up to now; those that wait for their rest; those complete."""
  position: int
  begun: np.ndarray
  complete: np.ndarray


def create(sizes):
  """Makes the curriculum; every group is trained on."""
  half, none = sizes.samples // 2, np.full(sizes.batch, -1)

  def propose(state):
    group = np.r_[state.begun, state.position + np.arange(sizes.batch)]
    group = group[group >= 0]
    new = group >= state.position
    return state._replace(position=state.position + sizes.batch), GroupRequests(
        group, np.array([
            order.indices(
                sizes.problems, seed=sizes.seed, position=g, count=1)[0]
            for g in group], np.int32),
        np.where(new, 0, half).astype(np.int32),
        np.where(new, half, sizes.samples - half).astype(np.int32),
        np.ones(len(group), bool))

  def update(state, ask, table, signal, gain):
    # Only a group whose samples are all there has a gain.
    assert (np.isnan(gain) == (ask.first == 0)).all()
    assert signal.shape == (sizes.samples + 1,)
    return state._replace(
        begun=ask.group[ask.first == 0], complete=state.begun)

  def take(state):
    taken = [state.complete] if state.complete[0] >= 0 else []
    return state._replace(complete=none), taken

  return Curriculum(
      init=lambda: State(0, none, none), propose=propose, update=update,
      take=take, holds=lambda state: state.begun, capacity=sizes.batch,
      max_prompts=2 * sizes.batch, max_requests=sizes.batch * sizes.samples,
      max_rounds=1, stale=True, min_count=half)
