"""Waves in flight: with `actor.lag`, rows are trained on some steps later."""

from typing import NamedTuple

import jax
import numpy as np

from jaxrl_llm.learner.advantages import WaveSignal
from jaxrl_llm.loop.rows import Buffer, empty, join
from jaxrl_llm.types import GroupRequests, Stages


class Due(NamedTuple):
  """The wave whose rewards the stages see in this step.

  Attributes:
    ask: its groups.
    rows: its R rollouts.
    signal: learning signal of its groups.
    unscored: how many of its rollouts have no scores yet: 0 or R.
    first_wave: the earliest one in which one of them was begun, where responses
      are carried over; else -1.
  """
  ask: GroupRequests
  rows: Buffer
  signal: WaveSignal
  unscored: int
  first_wave: int = -1


class InFlight(NamedTuple):
  """A wave in flight: sampled, judged and scored, but not seen by any stage.

  Attributes:
    ask: groups of the curriculum, with free places up to the most groups of a
      wave.
    rows: its rollouts, with free rows up to the most samples of a wave.
    groups: groups in `ask`.
    samples: rollouts in `rows`.
  """
  ask: GroupRequests
  rows: Buffer
  groups: int
  samples: int


def no_waves(stages: Stages) -> tuple[InFlight, ...]:
  """Returns the waves in flight before the first step: empty ones."""
  nothing = np.zeros(0)
  ask = GroupRequests(*(nothing.astype(kind) for kind in (
      np.int64, np.int32, np.int32, np.int32, bool)))
  return (_padded(ask, empty(0, stages), stages),) * stages.settings.lag


def exchange(
    in_flight: tuple[InFlight, ...], ask: GroupRequests, rows: Buffer,
    stages: Stages,
) -> tuple[tuple[InFlight, ...], GroupRequests, Buffer]:
  """Sends off a wave and receives the one that was sent `actor.lag` steps ago.

  Args:
    in_flight: waves in flight, the oldest first.
    ask: groups of the new wave.
    rows: rollouts of the new wave, scored.
    stages: their capacities are the sizes of a wave.

  Returns:
    The waves in flight; groups and rollouts of the wave that is due. Without a
    lag, it is the new one.
  """
  if not in_flight:
    return (), ask, rows
  due, *in_flight = *in_flight, _padded(ask, rows, stages)
  return tuple(in_flight), *(
      jax.tree.map(lambda x: x[:count], tree) for tree, count in (
          (due.ask, due.groups), (due.rows, due.samples)))


def _padded(ask: GroupRequests, rows: Buffer, stages: Stages) -> InFlight:
  """Makes a wave in flight.

  Its arrays have the same shapes in every wave: a checkpoint is restored into
  the shapes of the state before the first step.
  """
  groups, samples = len(ask.group), len(rows.table.group)
  most = stages.curriculum
  return InFlight(
      jax.tree.map(
          lambda x: np.pad(x, (0, most.max_prompts - groups)), ask),
      join(rows, empty(most.max_requests - samples, stages)),
      groups, samples)
