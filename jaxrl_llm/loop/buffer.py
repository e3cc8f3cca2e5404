"""The rollout buffer: rows held over from earlier waves, and this wave's.

Between two waves it has a fixed number of rows, of which some may be free. In a
wave the new rows are joined to it; at the end only rows that the curriculum or
the selection holds are kept. With `actor.lag`, new rows are first in flight for
as many waves.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_llm.base import schedules
from jaxrl_llm.learner.advantages import WaveSignal
from jaxrl_llm.loop.rollout import Judged, Responses
from jaxrl_llm.types import (
  GroupRequests,
  RolloutTokens,
  rows_of,
  Stages,
  Table,
)


class Buffer(NamedTuple):
  """Rollouts and facts about them.

  Attributes:
    table: C rows.
    tokens: the same rows.
  """
  table: Table
  tokens: RolloutTokens


class Wave(NamedTuple):
  """A wave as it was sampled: one call of the sampler and its results.

  Attributes:
    ask: groups that the curriculum asked for.
    responses: responses of the sampler.
    judged: facts about them, the same in every process.
    rows: the same rollouts as rows of the table.
    signal: learning signal of its groups, and their pass@k.
  """
  ask: GroupRequests
  responses: Responses
  judged: Judged
  rows: Buffer
  signal: WaveSignal


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


def capacity(stages: Stages) -> int:
  """Returns the rows that a buffer keeps between two waves."""
  return (stages.curriculum.capacity * stages.settings.samples
          + stages.selection.capacity)


def size(stages: Stages) -> str:
  """Describes the memory of rows held between steps; '' if there are none."""
  rows = capacity(stages) + (
      stages.settings.lag * stages.curriculum.max_requests)
  if not rows:
    return ''
  row_bytes = sum(
      x.nbytes for x in jax.tree.leaves(empty(1, stages)))
  return (f'Rollout buffer: {rows:,} rollouts of {row_bytes:,} bytes each, '
          f'{rows * row_bytes / 1e6:,.1f} MB on the host.')


def empty(rows: int, stages: Stages) -> Buffer:
  """Makes a buffer of free rows.

  Args:
    rows: C.
    stages: of the run, whose needs say which columns rows have.
  """
  return Buffer(*(
      view.free(rows, stages.needs.axes, stages.needs.columns)
      for view in (Table, RolloutTokens)))


def of_wave(
    ask: GroupRequests, responses: Responses, judged: Judged,
    stages: Stages, step: int = 0) -> Buffer:
  """Makes the rows of a wave, in the order of its requests.

  Args:
    ask: P groups.
    responses: R responses to them.
    judged: facts about them.
    stages: they say which columns rows have.
    step: steps done before, which choose the temperature of a schedule.

  Returns:
    R rows. Log-probs of other policies are 0 until they are computed. The
    actor's likeliest tokens are there if they were recorded. Responses and
    log-probs are 0 where they are not at home in this process.
  """
  prompts, row = responses.call.prompts, responses.call.requests.prompt
  free = empty(len(row), stages)
  table = free.table.replace(
      group=ask.group[row].astype(np.int64), sample=ask.sample,
      problem=ask.problem[row].astype(np.int32),
      policy_step=np.full(len(row), responses.policy_step, np.int32),
      reward=np.where(judged.valid, judged.reward, 0).astype(np.float32),
      valid=judged.valid, prompt_length=prompts.length[row],
      length=judged.length, generated=judged.generated,
      truncated=judged.truncated, entropy=judged.entropy,
      probe=ask.probe[row].astype(bool), shard=responses.shard)
  if table.separate is not None and judged.rewards:
    table = table.replace(separate=np.stack(
        [*judged.rewards.values()], 1).astype(np.float32))
  if table.temperature is not None:
    table.temperature[:] = schedules.at(stages.settings.temperature, step)
  if table.turn_start is not None or table.turn_rewards is not None:
    _add_turns(table, judged)
  return Buffer(table, tokens_of(
      responses, judged.length, free.tokens, stages.settings.tempered))


def _add_turns(table: Table, judged: Judged) -> None:
  """Writes the turns of responses into the columns that a table has of them."""
  columns = table.turn_start, table.turn_length, table.turn_rewards
  turns = judged.turns or [[(0, n, 0.0)] for n in judged.length]
  for row, of_row in enumerate(turns):
    for number, turn in enumerate(of_row):
      for column, value in zip(columns, turn):
        if column is not None:
          column[row, number] = value


def tokens_of(
    responses: Responses, length: np.ndarray, free: RolloutTokens,
    tempered: bool) -> RolloutTokens:
  """Makes the tokens of responses, in the order of their requests.

  Args:
    responses: R responses.
    length: [R] tokens of each, also of those that are elsewhere.
    free: R free rows, which have the log-probs to be kept.
    tempered: which of the two log-probs is kept.
  """
  rollouts, prompts = responses.rollouts, responses.call.prompts
  row = responses.call.requests.prompt
  real = np.arange(rollouts.tokens.shape[1]) < length[:, None]
  behaviour = rollouts.logprobs
  if tempered and rollouts.tempered_logprobs is not None:
    behaviour = rollouts.tempered_logprobs
  recorded = {
      name: x for name, x in rollouts.columns.items()
      if name in free.columns or name in ('top_ids', 'top_logprobs')}
  return free.replace(**recorded | dict(
      prompt=prompts.tokens[row], prompt_length=prompts.length[row],
      response=np.where(real, rollouts.tokens, 0), length=length,
      behaviour_logprobs=np.where(real, behaviour, 0).astype(np.float32)))


def join(held: Any, new: Any) -> Any:
  """Returns the rows of `held`, free ones too, then those of `new`.

  Args:
    held: a Buffer, its table, or its tokens.
    new: the same.
  """
  if not len(jax.tree.leaves(held)[0]):
    return new
  return jax.tree.map(lambda *x: np.concatenate(x), held, new)


def batch_rows(table: Table, groups: np.ndarray, samples: int) -> np.ndarray:
  """Finds the valid rows of a train batch.

  Args:
    table: C rows.
    groups: [B].
    samples: n.

  Returns:
    [B, n] row numbers, -1 where a sample is missing or not valid.

  Raises:
    ValueError: a group has no row at all.
  """
  # A group without valid rows is no mistake; one that is not held would train
  # on nothing, in silence.
  lost = groups[~np.isin(groups, table.group)]
  if len(lost):
    raise ValueError(
        f'The curriculum takes group {lost[0]}, of which no rollout is there: '
        'return a group from `holds` for as long as it waits.')
  return rows_of(table, groups, samples)


def keep(
    buffer: Buffer, stages: Stages, curriculum: Any,
    selection: Any) -> Buffer:
  """Moves the rows that a stage holds to the front of a buffer of fixed size.

  Args:
    buffer: C rows.
    stages: curriculum and selection, with their capacities.
    curriculum: state of the curriculum.
    selection: state of the selection.

  Returns:
    The rows that are held in their order, then free ones: `capacity` in all.

  Raises:
    ValueError: more rows are held than there is room for.
  """
  wanted = stages.selection.holds(selection, buffer.table).copy()
  rows = rows_of(
      buffer.table, stages.curriculum.holds(curriculum),
      stages.settings.samples, valid=False)
  wanted[rows[rows >= 0]] = True
  kept = np.flatnonzero(wanted & (buffer.table.group >= 0))
  size = capacity(stages)
  if len(kept) > size:
    raise ValueError(
        f'The curriculum and the selection hold {len(kept)} rollouts, more '
        f'than the {size} of their capacities: raise the capacity of the one '
        'that holds too many.')
  # Free rows keep the shapes: a checkpoint is restored into those of `empty`.
  return jax.tree.map(
      lambda x, free: np.concatenate([x[kept], free]), buffer,
      empty(size - len(kept), stages))
