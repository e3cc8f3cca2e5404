"""State of a run between two steps."""

from typing import Any, NamedTuple
import zlib

import jax
import numpy as np

from jaxrl_llm.learner.options import PLAYERS, POLICY
from jaxrl_llm.learner.update import TrainState
from jaxrl_llm.loop import carry, lag
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.loop.parts import Parts
from jaxrl_llm.sharding.processes import Processes
from jaxrl_llm.storage import paths
from jaxrl_llm.types import LearnerBatch

SELECTION = 1 << 31  # Seed of selections; no epoch of a shuffle has it.
SKIPPED_LIMIT = 3  # Consecutive non-finite updates that stop the run.


class RunState(NamedTuple):
  """State of a run between two steps.

  Attributes:
    step: steps done; a step is a wave, one call of the sampler.
    rounds: rounds done; a round is the updates on one train batch.
    learners: name of each player to its parameters and optimiser, on the
      device. A list of these in checkpoints.
    curriculum: state of the curriculum.
    selection: state of the selection.
    buffer: rollouts held for later steps.
    in_flight: waves of rollouts that no stage has seen yet, the oldest first.
    solved: [D] bool, training problems solved at least once.
    begun: groups of which some responses are unfinished; None without
      `sampling.carry_over`.
  """
  step: int
  rounds: int
  learners: dict[str, TrainState]
  curriculum: Any
  selection: Any
  buffer: rows_lib.Buffer
  in_flight: tuple[lag.InFlight, ...]
  solved: np.ndarray
  begun: carry.Begun | None = None

  @property
  def learner(self) -> TrainState:
    """The policy's learner."""
    return self.learners[POLICY]

  @property
  def listed(self) -> 'RunState':
    """The state in the form of checkpoints: learners are a list, the policy
    first.
    """
    return self._replace(
        begun=self.begun and self.begun._replace(said=()), learners=[
            self.learners[name] for name in PLAYERS if name in self.learners])

  @property
  def named(self) -> 'RunState':
    """The state from the form of checkpoints: learners have names again."""
    return self._replace(learners=dict(zip(PLAYERS, self.learners)))


def init_state(parts: Parts, learners: dict[str, TrainState]) -> RunState:
  """Returns the state before the first step.

  Args:
    parts: stages, sizes and problems of the run.
    learners: from `LearnerPrograms.init`.
  """
  choose, select, _, settings = parts.stages
  return RunState(
      step=0, rounds=0, learners=learners, curriculum=choose.init(),
      selection=select.init((settings.seed, SELECTION)),
      buffer=rows_lib.empty(
          rows_lib.capacity(parts.stages), parts.stages),
      in_flight=lag.no_waves(parts.stages),
      solved=np.zeros(len(parts.task.train), bool), begun=carry.empty(parts))


def digests(state: RunState) -> dict[str, int]:
  """Returns a checksum of each part of the state that all processes share.

  Processes that differ would take other numbers of updates, and wait for each
  other in a collective for ever: they compare these after every step.
  """
  def without_tokens(buffer):  # They are only at their home.
    return buffer._replace(tokens=None)

  shared = state._replace(
      learners={}, buffer=without_tokens(state.buffer), in_flight=tuple(
          wave._replace(rows=without_tokens(wave.rows))
          for wave in state.in_flight),
      begun=state.begun and state.begun._replace(
          rollouts=None, pieces=None, said=()))
  return {
      jax.tree_util.keystr(keys, simple=True, separator='.'): zlib.crc32(
          np.ascontiguousarray(leaf))
      for keys, leaf in jax.tree_util.tree_leaves_with_path(shared)}


def complete(state: RunState, processes: Processes) -> None:
  """Gathers the tokens of all rollouts, in place, so that they can be saved.

  A run may go on with other processes, of which each needs other rows.

  Args:
    state: between two steps.
    processes: who holds which rows; all must call this.
  """
  for rows in (state.buffer, *(wave.rows for wave in state.in_flight)):
    processes.exchange(
        np.flatnonzero(rows.table.group >= 0), rows.table.shard, rows.tokens)
  if begun := state.begun:
    processes.exchange(
        np.arange(begun.samples), begun.table.shard,
        (begun.rollouts, begun.pieces))
    shard = begun.table.shard[:len(begun.said)]
    begun.said[:], _ = processes.gather_rows(shard, [
        begun.said[row] for row in np.flatnonzero(processes.here(shard))])


def raise_not_finite(
    workdir: str, step: int, batch: LearnerBatch,
    processes: Processes) -> None:
  """Saves the mini-batch of the last failed update, and raises.

  Each process saves its rows.
  """
  number = f'-{processes.channel.index}' * (processes.channel.count > 1)
  path = paths.place(workdir) / f'not_finite{number}.npz'
  with paths.new_path(path) as file:
    np.savez(file, **batch.columns)
  raise FloatingPointError(
      f'{SKIPPED_LIMIT} updates in a row, the last in step {step}, had a loss '
      'or gradient that is not finite and were not applied: check the last '
      f'mini-batch, saved in {path}, and an objective, a correction or a term '
      'of your own; or start again in another workdir with a lower '
      'optimizer.learning_rate.')
