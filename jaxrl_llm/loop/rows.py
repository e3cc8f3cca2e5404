"""Rows of rollouts, by columns: of a wave, held over, in a batch.

Between two waves the buffer has a fixed number of rows, of which some may be
free. In a wave the new rows are joined to it; at the end only rows that the
curriculum or the selection holds are kept. Columns are made in their order: by
the sampler and the verifier, from rewards (signal and advantages), by scores.
"""

from typing import Any, Iterator, NamedTuple, Sequence

import jax
import numpy as np

from jaxrl_llm.base import schedules
from jaxrl_llm.learner import packing
from jaxrl_llm.learner.advantages import WaveSignal
from jaxrl_llm.loop import rollout
from jaxrl_llm.loop.parts import Parts
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.types import (
  AdvantageError,
  GroupRequests,
  LearnerBatch,
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
    signal: learning signal of its groups, and their pass@k; of those that
      leave, where responses are carried over.
    carried: a `carry.Carried`; None if nothing is carried over.
  """
  ask: GroupRequests
  responses: rollout.Responses
  judged: rollout.Judged
  rows: Buffer
  signal: WaveSignal
  carried: Any = None


def capacity(stages: Stages) -> int:
  """Returns the rows that a buffer keeps between two waves."""
  return (stages.curriculum.capacity * stages.settings.samples
          + stages.selection.capacity)


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
    ask: GroupRequests, responses: rollout.Responses, judged: rollout.Judged,
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
  free, teacher = empty(len(row), stages), responses.call.for_teacher
  table = free.table.replace(
      group=ask.group[row].astype(np.int64), sample=ask.sample,
      problem=ask.problem[row].astype(np.int32),
      policy_step=np.full(len(row), responses.policy_step, np.int32),
      reward=np.where(judged.valid, judged.reward, 0).astype(np.float32),
      valid=judged.valid, prompt_length=prompts.length[row],
      length=judged.length, generated=judged.generated,
      truncated=judged.truncated, entropy=judged.entropy,
      probe=ask.probe[row].astype(bool), shard=responses.shard,
      teacher_prompt_length=teacher and teacher.length[row])
  if table.separate is not None and judged.rewards:
    table = table.replace(separate=np.stack(
        [*judged.rewards.values()], 1).astype(np.float32))
  if table.temperature is not None:
    table.temperature[:] = schedules.at(stages.settings.temperature, step)
  _add_turns(table, judged)
  return Buffer(table, tokens_of(
      responses, judged.length, free.tokens, stages.settings.tempered))


def _add_turns(table: Table, judged: rollout.Judged) -> None:
  """Writes the turns of responses into the columns that a table has of them."""
  columns = table.turn_start, table.turn_length, table.turn_rewards
  turns = judged.turns or [[(0, n, 0.0)] for n in judged.length]
  for row, of_row in enumerate(turns):
    for number, turn in enumerate(of_row):
      for column, value in zip(columns, turn):
        if column is not None:
          column[row, number] = value


def tokens_of(
    responses: rollout.Responses, length: np.ndarray, free: RolloutTokens,
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
  if free.token_steps is not None:
    recorded['token_steps'] = np.int32(np.where(real, responses.policy_step, 0))
  response = np.where(real, rollouts.tokens, 0)
  if teacher := responses.call.for_teacher:
    recorded['teacher_tokens'], _ = rollout.sequences(
        teacher.tokens[row], teacher.length[row], response)
  return free.replace(**recorded | dict(
      prompt=prompts.tokens[row], prompt_length=prompts.length[row],
      response=response, length=length,
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


def signal(
    parts: Parts, held: Table, new: Table, ask: GroupRequests,
    step: int) -> WaveSignal:
  """Computes the curriculum's signal and the pass@k of a wave.

  Args:
    parts: programs of the advantages, and the stages.
    held: rows held over from earlier waves.
    new: rows of this wave.
    ask: P groups of this wave.
    step: steps done before.

  Returns:
    WaveSignal of NumPy arrays, with the gains of the P groups.
  """
  program, table, first = parts.advantages, join(held, new), len(held.group)
  rows = rows_of(table, ask.group, parts.stages.settings.samples, valid=False)
  # Waves differ in size; a program of the largest serves all of them.
  free = parts.stages.curriculum.max_prompts - len(rows)
  rows = np.pad(rows, ((0, free), (0, 0)), constant_values=-1)
  sampled = rows >= 0
  facts = table.at(rows)
  valid = sampled & facts.valid
  # A group may have rows of an earlier wave, which counted when they came.
  probe = valid & (rows >= first) & facts.probe
  padded = jax.device_get(program.of_wave(*parts.replicate([
      facts.reward, valid, facts.generated, probe, sampled.all(1),
      np.uint32(step),
      {name: facts.columns[name] for name in program.columns}])))
  if np.isnan(padded.signal).any():
    raise AdvantageError(
        'The advantage is NaN for a group whose responses have the same '
        'length and other rewards: return finite numbers.')
  return padded._replace(gain=padded.gain[:len(ask.group)])


def with_advantages(
    parts: Parts, table: Table, batches_of_step: Sequence[np.ndarray],
    step: int) -> tuple[Table, dict[str, float]]:
  """Computes the advantages of train batches; later steps do not change them.

  Args:
    parts: program of the advantages.
    table: C rows.
    batches_of_step: [B, n] rows of each batch; -1 for a sample that is missing
      or not valid.
    step: steps done before.

  Returns:
    The table with advantage, trained, group_mean and group_std of these rows,
    and the advantage's metrics, means over the batches.

  Raises:
    AdvantageError: the user's advantage of a row is not finite.
  """
  program = parts.advantages
  names = 'advantage', 'trained', 'group_mean', 'group_std'
  columns = {name: getattr(table, name).copy() for name in names}
  metrics = []
  for rows in batches_of_step:
    valid, facts = rows >= 0, table.at(rows)
    rewards = facts.reward
    made = jax.device_get(program.of_batch(*parts.replicate([
        rewards, valid, facts.generated, facts.truncated, np.uint32(step),
        {name: facts.columns[name] for name in program.columns}])))
    count = np.maximum(valid.sum(1, keepdims=True), 1)
    mean = rewards.sum(1, keepdims=True, where=valid) / count
    square = ((rewards - mean) ** 2).sum(1, keepdims=True, where=valid) / count
    for name, values in zip(names, (
        made.advantages, made.trained, mean, np.sqrt(square))):
      columns[name][rows[valid]] = np.broadcast_to(values, rows.shape)[valid]
    if made.token_advantages is not None:
      columns.setdefault('token_advantages', table.token_advantages.copy())[
          rows[valid]] = made.token_advantages[valid]
    metrics.append(made.metrics)
    if own := parts.stages.settings.advantage:
      _check_advantages(made.advantages, rewards, valid, own)
  return table.replace(**columns), {
      name: float(np.mean([m[name] for m in metrics]))
      for name in (metrics[0] if metrics else ())}


def _check_advantages(
    advantages: np.ndarray, rewards: np.ndarray, valid: np.ndarray,
    name: str) -> None:
  """Raises AdvantageError if one of a train batch is not finite.

  Args:
    advantages, rewards: [B, n].
    valid: [B, n] bool; the advantages of other samples are not used.
    name: of the advantage.
  """
  wrong = valid & ~np.isfinite(advantages)
  if wrong.any():
    group, sample = np.argwhere(wrong)[0]
    of_group = rewards[group, valid[group]].tolist()
    raise AdvantageError(
        f'advantage={name} is {advantages[group, sample]} for a response in a '
        f'group of the rewards {of_group!s:.120}: return finite numbers.')


def plan(
    parts: Parts, table: Table, rows: np.ndarray,
    needed: np.ndarray) -> packing.Plan:
  """Plans the microbatches of `rows`, of which some are `needed`."""
  facts = table.at(rows)
  longest = np.maximum(
      facts.prompt_length, facts.columns.get('teacher_prompt_length', 1))
  return processes_lib.replicate(
      parts.programs.learner.plan(
          facts.group, longest, np.where(needed, facts.length, 0)),
      parts.processes.learner_mesh)


# Columns of which others of a batch are made.
_MERGED = 'prompt', 'prompt_length', 'response', 'length', 'generated'


def learner_batch(
    tokens: RolloutTokens, rows: np.ndarray, advantages: np.ndarray,
    trained: np.ndarray, **further: Any) -> LearnerBatch:
  """Makes a LearnerBatch, with each response directly after its prompt.

  Args:
    tokens: C rollouts.
    rows: [B] which of them; -1 makes a filler row, which costs no time and
      counts in no denominator.
    advantages: [B]; those of filler rows are ignored.
    trained: [B] bool, whether the row's tokens count in the loss.
    **further: columns [B, ...] of the batch, beside those of `tokens`.

  Returns:
    LearnerBatch of B rows and S = L + T columns.
  """
  of = tokens.at(rows)
  wrote = np.arange(of.response.shape[1]) < of.length[:, None]
  if of.generated is not None:
    wrote &= of.generated
  sequence, prompt_length = rollout.sequences(
      of.prompt, of.prompt_length, of.response)
  carried = {name: x for name, x in of.columns.items() if name not in _MERGED}
  return LearnerBatch(**carried | further, **dict(
      tokens=sequence, prompt_length=prompt_length, response_length=of.length,
      mask=trained[:, None] & wrote,
      advantages=np.where(rows >= 0, advantages, 0.0).astype(np.float32)))


def minibatches(
    rows: np.ndarray, *, size: int, epochs: int, seed: Sequence[int],
) -> Iterator[np.ndarray]:
  """Splits rows into mini-batches, one per optimiser step.

  Args:
    rows: [K] numbers; -1 for filler, which is shuffled like a row.
    size: rows of a mini-batch.
    epochs: number of passes over the rows.
    seed: integers that seed the shuffles; each epoch has its own shuffle.

  Yields:
    epochs * ceil(K / size) arrays [size]. What does not fill the last
    mini-batch of a pass is filler. With one mini-batch per pass the rows are
    not shuffled.
  """
  count = -(-len(rows) // size)
  for epoch in range(epochs):
    order = rows
    if count > 1:
      order = np.random.default_rng([*seed, epoch]).permutation(rows)
    order = np.pad(order, (0, count * size - len(rows)), constant_values=-1)
    yield from np.split(order, count)
