"""From the rewards of a wave to updates: signal, advantages, scores, rounds."""

import io
from typing import Any, Callable, NamedTuple, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.base import phases
from jaxrl_llm.learner import advantages as advantages_lib
from jaxrl_llm.learner import packing
from jaxrl_llm.learner.learner import LearnerPrograms
from jaxrl_llm.learner.loss import LossParams
from jaxrl_llm.learner.update import TrainState
from jaxrl_llm.loop import batches
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.sharding.processes import Processes
from jaxrl_llm.storage import paths
from jaxrl_llm.types import (
  AdvantageError,
  GroupRequests,
  LearnerBatch,
  Picked,
  RolloutTokens,
  rows_of,
  Stages,
  Table,
)

SKIPPED_LIMIT = 3  # Consecutive non-finite updates that stop the run.

Replicate = Callable[[Any], Any]
Select = Callable[..., tuple[Any, np.ndarray]]

SELECTION = 1 << 31  # Seed of selections; no epoch of a shuffle has it.


class Learning(NamedTuple):
  """Learner and its fixed inputs, the same in every step.

  Attributes:
    learner: the programs `score` and `update`, and their plans.
    loss: hyperparameters of the loss, on the devices.
    frozen: the policy's parameters that are not trained, or None.
    anchor: parameters of the KL penalty's frozen model, or None.
    stages: their needs and settings.
    processes: who holds which rows.
  """
  learner: LearnerPrograms
  loss: LossParams
  frozen: Any
  anchor: Any
  stages: Stages
  processes: Processes


class RunCounts(NamedTuple):
  """Numbers of steps, rounds and updates that a run has done before a step.

  Attributes:
    steps: steps.
    rounds: rounds; the number of a round seeds its selection and shuffles.
    updates: optimiser steps of the policy.
  """
  steps: int
  rounds: int
  updates: int


class RoundsOutcome(NamedTuple):
  """Outcome of the rounds of a step.

  Attributes:
    learners: states of the players after them.
    selection: the selection's state after them.
    table: the table, with the rounds of its rows and facts from the updates.
    metrics: name to [], of each optimiser step.
    picked: rows of each round.
  """
  learners: tuple[TrainState, ...]
  selection: Any
  table: Table
  metrics: list[dict[str, np.ndarray]]
  picked: list[Picked]


def signal(
    program: advantages_lib.Program, table: Table, ask: GroupRequests,
    step: int, *, first: int, prompts: int, samples: int, replicate: Replicate,
) -> advantages_lib.WaveSignal:
  """Computes the curriculum's signal and the pass@k of a wave.

  Args:
    program: of the advantages.
    table: C rows, with the rewards of this wave.
    ask: P groups of this wave.
    step: steps done before, uint32.
    first: row of this wave's first rollout.
    prompts: most groups of a wave; the program has this size.
    samples: n.
    replicate: (tree of host values) -> the same on the devices.

  Returns:
    WaveSignal of NumPy arrays, with the gains of the P groups.
  """
  rows = rows_of(table, ask.group, samples, valid=False)
  # Waves differ in size; a program of the largest serves all of them.
  rows = np.pad(rows, ((0, prompts - len(rows)), (0, 0)), constant_values=-1)
  sampled = rows >= 0
  facts = table.at(rows)
  valid = sampled & facts.valid
  # A group may have rows of an earlier wave, which counted when they came.
  probe = valid & (rows >= first) & facts.probe
  padded = jax.device_get(program.of_wave(*replicate([
      facts.reward, valid, facts.generated, probe, sampled.all(1), step,
      {name: facts.columns[name] for name in program.columns}])))
  return padded._replace(gain=padded.gain[:len(ask.group)])


def with_advantages(
    program: advantages_lib.Program, table: Table,
    batches_of_step: Sequence[np.ndarray], step: int, *,
    replicate: Replicate) -> tuple[Table, dict[str, float]]:
  """Computes the advantages of train batches; later steps do not change them.

  Args:
    program: of the advantages.
    table: C rows.
    batches_of_step: [B, n] rows of each batch; -1 for a sample that is missing
      or not valid.
    step: steps done before, uint32.
    replicate: (tree of host values) -> the same on the devices.

  Returns:
    The table with advantage, trained, group_mean and group_std of these rows,
    and the advantage's metrics, means over the batches.
  """
  names = 'advantage', 'trained', 'group_mean', 'group_std'
  columns = {name: getattr(table, name).copy() for name in names}
  metrics = []
  for rows in batches_of_step:
    valid, facts = rows >= 0, table.at(rows)
    rewards = facts.reward
    made = jax.device_get(program.of_batch(*replicate([
        rewards, valid, facts.generated, facts.truncated, step,
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
  return table.replace(**columns), {
      name: float(np.mean([m[name] for m in metrics]))
      for name in (metrics[0] if metrics else ())}


def check_advantages(
    table: Table, batches_of_step: Sequence[np.ndarray], name: str) -> None:
  """Raises AdvantageError if one of the train batches is not finite.

  Args:
    table: C rows, with the advantages.
    batches_of_step: of `with_advantages`.
    name: of the advantage.
  """
  for rows in batches_of_step:
    wrong = ~np.isfinite(table.at(rows).advantage)
    if wrong.any():
      group, sample = np.argwhere(wrong)[0]
      rewards = table.reward[rows[group][rows[group] >= 0]].tolist()
      raise AdvantageError(
          f'advantage={name} is {table.advantage[rows[group, sample]]} '
          f'for a response in a group of the rewards {rewards!s:.120}: return '
          'finite numbers.')


def to_score(
    table: Table, groups: Sequence[np.ndarray], unscored: int, *, size: int,
    drop_zero_advantage: bool) -> np.ndarray:
  """Finds the rows without scores whose log-probs may be needed later.

  Args:
    table: C rows.
    groups: [G, n] rows of the groups that are trained on or held, -1 for none.
    unscored: R, rows at the table's end that have no scores.
    size: length of the result, at least R.
    drop_zero_advantage: leave out rows that are never trained on.

  Returns:
    [size] numbers of these rows among the R, each at its own place; -1 for the
    others and filler.
  """
  needed = np.zeros(len(table.group), bool)
  for rows in groups:
    needed[rows[rows >= 0]] = True
  if drop_zero_advantage:
    needed &= table.advantage != 0.0  # NaN before its round
  return masked_indices(needed[len(needed) - unscored:], size)


def masked_indices(which: np.ndarray, size: int) -> np.ndarray:
  """Returns [size] the numbers of rows that `which` marks, -1 elsewhere."""
  rows = np.where(which, np.arange(len(which)), -1)
  return np.pad(rows, (0, size - len(rows)), constant_values=-1)


def with_scores(
    learning: Learning, table: Table, tokens: RolloutTokens, rows: np.ndarray,
    players: tuple[Any, ...]) -> RolloutTokens:
  """Computes the log-probs of other policies for rows of a wave.

  Args:
    learning: its loss has the temperature of all policies, if the table has
      none.
    table: R rows.
    tokens: the same rows. Of their old log-probs, anchor log-probs, actor
      log-probs and normalisers, the arrays that are there are filled.
    rows: [B] which rollouts to score; -1 for filler.
    players: parameters of the policy at the step of these rows, and of the
      actor, if it is another model.

  Returns:
    The rollouts with the scores of these rows, each at the home of its row. The
    likeliest tokens are left out if the normalisers were all that they are for.
  """
  processes = learning.processes
  plain = tokens.replace(top_ids=None, top_logprobs=None)
  # The actor's pass costs as much as it is large: only where it is asked for.
  pair = len(players) > 1 and not (
      tokens.actor_logprobs is None and tokens.z is None)
  models = {'old_logprobs': players if pair else players[0],
            'anchor_logprobs': learning.anchor}
  models = {name: params for name, params in models.items()
            if getattr(tokens, name) is not None}
  scored = plain if tokens.z is not None else tokens
  if not models or (rows < 0).all():
    return scored
  # The shards have as many places as rows, so that no row leaves its home.
  placed = processes.place(rows, table.shard)
  mine = placed[processes.positions(len(rows))]
  real = mine >= 0
  plan = _plan(learning, table, placed, placed >= 0)
  for name, params in models.items():
    # Only this call needs top-k lists, the largest arrays of a batch.
    needs_top = name == 'old_logprobs' and tokens.z is not None
    kept = learning.stages.needs.scored if needs_top else ('experts',)
    batch = processes.shard_rows(batches.learner_batch(
        tokens.only(kept), mine,
        np.zeros(len(mine)), np.ones(len(mine), bool),
        temperature=table.at(mine).temperature), len(rows))
    scores = processes.fetch_rows(learning.learner.score(
        params, batch, plan, learning.loss, learning.frozen))
    for field, values in scores._asdict().items():
      field = name if field == 'logprobs' else field
      if values is not None and getattr(tokens, field) is not None:
        column = getattr(scored, field).copy()
        column[mine[real]] = values[real]
        scored = scored.replace(**{field: column})
  return scored


def _plan(
    learning: Learning, table: Table, rows: np.ndarray,
    needed: np.ndarray) -> packing.Plan:
  """Plans the microbatches of `rows`, of which some are `needed`."""
  facts = table.at(rows)
  return processes_lib.replicate(
      learning.learner.plan(facts.group, facts.prompt_length,
                            np.where(needed, facts.length, 0)),
      learning.processes.learner_mesh)


def run(
    learning: Learning, learners: tuple[TrainState, ...], table: Table,
    tokens: RolloutTokens, batches_of_step: Sequence[np.ndarray],
    select: Select, selection: Any, counts: RunCounts) -> RoundsOutcome:
  """Runs the rounds of a step: select rows, then update on them.

  Args:
    learning: programs and hyperparameters.
    learners: states of the players before; they are donated.
    table: C rows; it has the advantages.
    tokens: the same rows. Those used away from their home are written there.
    batches_of_step: [B, n] rows of each batch; -1 for a sample that is missing
      or not valid.
    select: `types.Selection.select`.
    selection: state of the selection before.
    counts: steps, rounds and updates before this step.

  Returns:
    The outcome.

  Raises:
    ValueError: the selection picks rows that it must not pick.
    FloatingPointError: SKIPPED_LIMIT consecutive updates had a loss or gradient
      that is not finite; the last mini-batch is saved.
  """
  settings, metrics, picked = learning.stages.settings, [], []
  behaviour_params = None
  if learning.stages.needs.behaviour_params and batches_of_step:
    # Updates overwrite the parameters that wrote the rows.
    behaviour_params = jax.tree.map(jnp.copy, learners[-1].params)
  state = learners if len(learners) > 1 else learners[0]
  for number, rows in enumerate(batches_of_step, counts.rounds):
    made = table.round.copy()
    made[rows[rows >= 0]] = number
    table = table.replace(round=made)
    selection, rows = select(
        selection, table, rows, (settings.seed, number, SELECTION))
    if settings.drop_zero_advantage:
      rows = np.where(table.at(rows).advantage == 0.0, -1, rows)
    real = rows[rows >= 0]
    # An update that was skipped has changed no policy.
    updates = counts.updates + sum(
        m['tokens'] > 0 and m['skipped_in_row'] == 0 for m in metrics)
    picked.append(Picked(
        real, updates - table.policy_step[real], number - table.round[real],
        table.usage[real]))
    state, table, of_round = _update(
        learning, state, table, tokens, rows, behaviour_params,
        counts._replace(rounds=number))
    metrics += of_round
  return RoundsOutcome(
      state if len(learners) > 1 else (state,), selection, table, metrics,
      picked)


def _update(
    learning: Learning, state: Any, table: Table, tokens: RolloutTokens,
    rows: np.ndarray, behaviour_params: Any, counts: RunCounts,
) -> tuple[Any, Table, list[dict[str, np.ndarray]]]:
  """Takes the optimiser steps of the round `counts.rounds` on its rows.

  Returns:
    The state after the steps; the table with their usage, and the latest
    entropies and clip shares; the metrics of each optimiser step.
  """
  settings, processes = learning.stages.settings, learning.processes
  usage, metrics = table.usage.copy(), []
  usage[np.unique(rows[rows >= 0])] += 1
  facts = dict(
      entropy=table.entropy.copy(), clip_share=table.clip_share.copy())
  parts = [
      processes.place(part, table.shard) for part in batches.minibatches(
          rows, size=settings.minibatch, epochs=settings.epochs,
          seed=(settings.seed, counts.rounds))]
  away = [processes.surplus(part, table.shard) for part in parts]
  if away:  # in one exchange: each is a wait for the slowest process
    processes.exchange(
        np.unique(np.concatenate(away)), table.shard, tokens)
  for part in phases.counted(parts, 'optimiser steps'):
    batch = _minibatch(learning, table, tokens, part)
    here = table.at(part)
    trained = here.trained & (here.length > 0)
    state, result = learning.learner.update(
        state, processes.shard_rows(batch, len(part)),
        _plan(learning, table, part, trained), learning.loss, learning.frozen,
        behaviour_params)
    result = jax.device_get(result)
    for name, values in result.pop('rows', {}).items():
      facts[name][part[trained]] = values[trained]
    metrics.append(result)
    if result['skipped_in_row'] >= SKIPPED_LIMIT:
      _raise_not_finite(settings.workdir, counts.steps + 1, batch, processes)
  return state, table.replace(usage=usage, **facts), metrics


def _minibatch(
    learning: Learning, table: Table, tokens: RolloutTokens,
    rows: np.ndarray) -> LearnerBatch:
  """Makes the rows of a mini-batch that this process's devices hold."""
  mine = rows[learning.processes.positions(len(rows))]
  stages, facts = learning.stages, table.at(mine)
  needed = stages.needs.updated
  further = {name: x for name, x in facts.columns.items()
             if name in needed and name not in tokens.columns}
  if 'identity' in needed:  # it seeds the rejection's draws
    further['identity'] = np.stack([
        np.full(len(mine), stages.settings.seed), facts.group, facts.sample],
                                   1).astype(np.uint32)
  return batches.learner_batch(
      tokens, mine, facts.advantage, facts.trained, **further)


def _raise_not_finite(
    workdir: str, step: int, batch: LearnerBatch,
    processes: Processes) -> None:
  """Saves the mini-batch of the last failed update, and raises.

  Each process saves its rows.
  """
  number = f'-{processes.channel.index}' * (processes.channel.count > 1)
  path = paths.place(workdir) / f'not_finite{number}.npz'
  content = io.BytesIO()
  np.savez(content, **batch.columns)
  paths.write_whole(path, content.getvalue())
  raise FloatingPointError(
      f'{SKIPPED_LIMIT} updates in a row, the last in step {step}, had a loss '
      'or gradient that is not finite and were not applied: check the last '
      f'mini-batch, saved in {path}, and an objective or a correction of your '
      'own; or start again in another workdir with a lower '
      'optimizer.learning_rate.')
