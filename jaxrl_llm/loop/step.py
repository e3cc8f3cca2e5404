"""One step of the loop, in four acts.

`sample`: the curriculum proposes problems, the sampler answers them, the
verifier judges the answers. `absorb`: the stages learn the rewards, the
curriculum takes train batches, rewards become advantages. `score`: the learner
computes the log-probs that updates compare theirs with. `learn`: the selection
picks rows, the learner takes its optimiser steps. Data moves one way; what
comes back to an earlier stage is values.
"""

from typing import Any, Callable, NamedTuple, Sequence

from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.base import phases, schedules
from jaxrl_llm.learner.forward import BEHAVIOUR
from jaxrl_llm.learner.options import POLICY, TEACHER
from jaxrl_llm.learner.update import TrainState
from jaxrl_llm.loop import carry, lag, reward, rollout, step_metrics, turns
from jaxrl_llm.loop import due as due_lib
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.loop import scores as scores_lib
from jaxrl_llm.loop.parts import Fixed, Parts
from jaxrl_llm.loop.state import (
  digests,
  raise_not_finite,
  RunState,
  SELECTION,
  SKIPPED_LIMIT,
)
from jaxrl_llm.monitoring import timing
from jaxrl_llm.types import LearnerBatch, Picked, RolloutTokens, rows_of, Table


def take_step(
    parts: Parts, state: RunState, fixed: Fixed,
    timer: timing.Timer) -> tuple[RunState, step_metrics.Report]:
  """Takes one step of the loop: a wave of rollouts and its train batches.

  Args:
    parts: task, stages, programs and config.
    state: before the step; its learners are donated.
    fixed: device values that no step changes.
    timer: seconds per phase.

  Returns:
    The state after the step, and what the step reports.

  Raises:
    VerifierError: the verifier gave no response a reward, in a few steps in a
      row, or returned something that is not a reward.
    NoSignalError: the groups of the curriculum have had no signal for too long.
    Stopped: a process was asked to stop; the state before is unchanged.
    FloatingPointError: too many updates in a row had a loss or gradient that
      is not finite; the last batch is saved.
  """
  curriculum, wave = sample(parts, state, fixed, timer)
  absorbed = absorb(parts, state, fixed, curriculum, wave, timer)
  tokens = score(parts, state, fixed, absorbed, timer)
  learned, buffer = learn(parts, state, fixed, absorbed, tokens, timer)

  solved = state.solved.copy()
  solved[wave.rows.table.problem[wave.judged.right]] = True
  state = RunState(
      state.step + 1, state.rounds + len(absorbed.batches), learned.learners,
      absorbed.curriculum, learned.selection, buffer, absorbed.in_flight,
      solved, absorbed.begun)
  report = step_metrics.report(
      parts, scores_lib.of_wave(wave, absorbed.in_flight, tokens), state,
      updates=learned.metrics, measured={
          **wave.signal.metrics, **absorbed.metrics,
          **(wave.carried.metrics if wave.carried else {}),
          **parts.stages.curriculum.metrics(state.curriculum),
          **parts.stages.selection.metrics(state.selection)},
      trained=learned.table, picked=learned.picked,
      frozen=fixed.frozen[POLICY] is not None)
  parts.processes.channel.agree(digests(state), f'after step {state.step}')
  return state, report


def sample(
    parts: Parts, state: RunState, fixed: Fixed,
    timer: timing.Timer) -> tuple[Any, rows_lib.Wave]:
  """Act 1: samples responses to the curriculum's problems, and judges them.

  Args:
    parts, state, fixed, timer: those of `take_step`.

  Returns:
    State of the curriculum after `propose`, and the wave.
  """
  settings, begun = parts.stages.settings, state.begun
  sampler = parts.programs.rollout_sampler
  with timer('propose'):
    if begun is None:
      curriculum, ask = parts.stages.curriculum.propose(state.curriculum)
    else:
      curriculum, ask, begun = carry.propose(parts, state.curriculum, begun)

  with timer('reshard'):
    weights = jax.block_until_ready(
        sampler.weights.apply(
            state.learners[sampler.player].params,
            fixed.frozen[sampler.player]))

  draw = fixed.sampling
  if 'temperature' in parts.stages.needs.columns:
    draw = parts.sampling(temperature=schedules.at(
        settings.temperature, state.step))
  sampling = turns.WaveSampling(
      parts.sample, weights, draw, state.step, sampler.sampler.sampler.slots,
      int(jax.device_get(state.learner.step)), state.step)
  with timer('sample'):
    if begun is None:
      responses, start_judging = turns.respond(
          parts, rollout.call_of(parts.task, ask, settings), sampling)
    else:
      responses, start_judging, begun = carry.respond(parts, begun, sampling)
  del weights, sampling  # The update needs their room.

  # The user's code may use JAX as it likes.
  with timer('verify'), jax.transfer_guard('allow'):
    judged = reward.judged(parts, fixed, responses, start_judging(), timer)
    warning = parts.unrewarded.check(judged, responses, state.step)
    if warning and parts.processes.channel.first:
      logging.warning(warning)
    parts.processes.channel.check()

  with timer('batch'):
    if begun is not None:
      return curriculum, carry.wave(parts, state, begun, responses, judged)
    rows = rows_lib.of_wave(ask, responses, judged, parts.stages, state.step)
    return curriculum, rows_lib.Wave(
        ask, responses, judged, rows, rows_lib.signal(
            parts, state.buffer.table, rows.table, ask, state.step))


class Absorbed(NamedTuple):
  """Train batches, and the stages' states, after the wave that is due.

  Attributes:
    curriculum: its state, after `take`.
    selection: its state, after `feedback`.
    in_flight: waves that no stage has seen yet, the oldest first.
    begun: groups of which some responses are unfinished, see `carry`.
    due: the wave.
    table: rows held over from earlier waves, then those of `due`; the rows of
      the train batches have their advantages.
    batches: rows [B, n] of each train batch.
    metrics: metrics of the advantages.
  """
  curriculum: Any
  selection: Any
  in_flight: tuple[lag.InFlight, ...]
  begun: carry.Begun | None
  due: lag.Due
  table: Table
  batches: list[np.ndarray]
  metrics: dict[str, float]


def absorb(
    parts: Parts, state: RunState, fixed: Fixed, curriculum: Any,
    wave: rows_lib.Wave, timer: timing.Timer) -> Absorbed:
  """Act 2: shows a wave's rewards to the stages, and makes the train batches.

  It is the wave that was sampled `actor.lag` steps ago; without a lag, the new
  one.

  Args:
    parts, state, fixed, timer: those of `take_step`.
    curriculum: state of the curriculum after `propose`.
    wave: the new wave.
  """
  choose, select, _, settings = parts.stages
  in_flight, begun, due = due_lib.exchange(parts, state, fixed, wave, timer)
  with timer('batch'):
    table = rows_lib.join(state.buffer.table, due.rows.table)
    with timer('select'):
      # Before the rounds: a round is judged by a wave that was sampled after
      # its updates.
      selection = select.feedback(state.selection, step_metrics.probe(
          due.rows.table, wave.responses.policy_step, due.first_wave))
    curriculum = choose.update(
        curriculum, due.ask, table, due.signal.signal, due.signal.gain)
    curriculum, taken = choose.take(curriculum)
    batches = [
        rows_lib.batch_rows(table, groups, settings.samples)
        for groups in taken]
    table, metrics = rows_lib.with_advantages(parts, table, batches, state.step)
  return Absorbed(
      curriculum, selection, in_flight, begun, due, table, batches, metrics)


def score(
    parts: Parts, state: RunState, fixed: Fixed, absorbed: Absorbed,
    timer: timing.Timer) -> RolloutTokens:
  """Act 3: scores rows by the policy that wrote them, before it learns.

  Only rows that a round may still use cost a forward pass: those of the train
  batches, and those that wait for a later wave. The parameters are those that
  wrote them, up to the first update of `learn`.

  Args:
    parts, state, fixed, timer: those of `take_step`.
    absorbed: table and train batches.

  Returns:
    Tokens and log-probs of the table's rows.
  """
  settings = parts.stages.settings
  with timer('score'):
    waiting = rows_of(
        absorbed.table, parts.stages.curriculum.holds(absorbed.curriculum),
        settings.samples)
    rows = scores_lib.to_score(
        absorbed.table, [*absorbed.batches, waiting], absorbed.due.unscored,
        size=parts.programs.scored_rows,
        drop_zero_advantage=(
            settings.drop_zero_advantage or settings.skips_zero))
    return rows_lib.join(state.buffer.tokens, scores_lib.with_scores(
        parts, fixed, *absorbed.due.rows, rows, state.learners, timer))


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
  learners: dict[str, TrainState]
  selection: Any
  table: Table
  metrics: list[dict[str, np.ndarray]]
  picked: list[Picked]


def learn(
    parts: Parts, state: RunState, fixed: Fixed, absorbed: Absorbed,
    tokens: RolloutTokens, timer: timing.Timer,
) -> tuple[RoundsOutcome, rows_lib.Buffer]:
  """Act 4: runs a round for each train batch: select rows, then update.

  Args:
    parts, state, fixed, timer: those of `take_step`.
    absorbed: table and train batches.
    tokens: of the table's rows.

  Returns:
    The outcome of the rounds, and the rows that are held for later steps.
  """
  def select(*of_round):
    with timer('select'):
      return parts.stages.selection.select(*of_round)

  with timer('update'):
    learned = run_rounds(
        parts, fixed, state.learners, rows_lib.Buffer(absorbed.table, tokens),
        absorbed.batches, select, absorbed.selection, RunCounts(
            state.step, state.rounds, int(jax.device_get(state.learner.step))))
    return learned, rows_lib.keep(
        rows_lib.Buffer(learned.table, tokens), parts.stages,
        absorbed.curriculum, learned.selection)


def run_rounds(
    parts: Parts, fixed: Fixed, learners: dict[str, TrainState],
    buffer: rows_lib.Buffer, batches_of_step: Sequence[np.ndarray],
    select: Callable[..., tuple[Any, np.ndarray]], selection: Any,
    counts: RunCounts) -> RoundsOutcome:
  """Runs the rounds of a step: select rows, then update on them.

  Args:
    parts, fixed: programs and hyperparameters.
    learners: states of the players before; they are donated.
    buffer: C rows, with advantages. Tokens used away from their home are
      written there.
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
  (table, tokens), settings = buffer, parts.stages.settings
  metrics, picked = [], []
  others = {} if fixed.teacher is None else {TEACHER: fixed.teacher}
  if parts.stages.needs.behaviour_params and batches_of_step:
    # Updates overwrite the parameters that wrote the rows.
    others[BEHAVIOUR] = jax.tree.map(
        jnp.copy, learners[parts.programs.rollout_sampler.player].params)
  for number, rows in enumerate(batches_of_step, counts.rounds):
    made = table.round.copy()
    made[rows[rows >= 0]] = number
    table = table.replace(round=made)
    selection, rows = select(
        selection, table, rows, (settings.seed, number, SELECTION))
    if settings.drop_zero_advantage:
      rows = np.where(table.at(rows).without_advantage, -1, rows)
    real = rows[rows >= 0]
    # An update that was skipped has changed no policy.
    updates = counts.updates + sum(
        m['tokens'] > 0 and m['skipped_in_row'] == 0 for m in metrics)
    picked.append(Picked(
        real, updates - table.policy_step[real], number - table.round[real],
        table.usage[real]))
    learners, table, of_round = _update(
        parts, fixed, learners, table, tokens, rows, others or None,
        counts._replace(rounds=number))
    metrics += of_round
  return RoundsOutcome(learners, selection, table, metrics, picked)


def _update(
    parts: Parts, fixed: Fixed, learners: Any, table: Table,
    tokens: RolloutTokens, rows: np.ndarray, others: Any,
    counts: RunCounts) -> tuple[Any, Table, list[dict[str, np.ndarray]]]:
  """Takes the optimiser steps of the round `counts.rounds` on its rows.

  Returns:
    The learners after the steps; the table with their usage, and the latest
    entropies and clip shares; the metrics of each optimiser step.
  """
  settings, processes = parts.stages.settings, parts.processes
  usage, metrics = table.usage.copy(), []
  usage[np.unique(rows[rows >= 0])] += 1
  facts = dict(entropy=table.entropy.copy(), clip_share=table.clip_share.copy())
  split = [
      processes.place(part, table.shard) for part in rows_lib.minibatches(
          rows, size=settings.minibatch, epochs=settings.epochs,
          seed=(settings.seed, counts.rounds))]
  away = [processes.surplus(part, table.shard) for part in split]
  if away:  # in one exchange: each is a wait for the slowest process
    processes.exchange(np.unique(np.concatenate(away)), table.shard, tokens)
  for part in phases.counted(split, 'optimiser steps'):
    batch = _minibatch(parts, table, tokens, part)
    here = table.at(part)
    trained = here.trained & (here.length > 0)
    if settings.skips_zero:
      trained &= ~here.without_advantage
    learners, result = parts.programs.learner.update(
        learners, processes.shard_rows(batch, len(part)),
        rows_lib.plan(parts, table, part, trained), fixed.loss,
        fixed.frozen[POLICY], others)
    result = jax.device_get(result)
    trained &= result['skipped_in_row'] == 0  # else its facts may not be finite
    for name, values in result.pop('rows', {}).items():
      facts[name][part[trained]] = values[trained]
    metrics.append(result)
    if result['skipped_in_row'] >= SKIPPED_LIMIT:
      raise_not_finite(settings.workdir, counts.steps + 1, batch, processes)
  return learners, table.replace(usage=usage, **facts), metrics


def _minibatch(
    parts: Parts, table: Table, tokens: RolloutTokens,
    rows: np.ndarray) -> LearnerBatch:
  """Makes the rows of a mini-batch that this process's devices hold."""
  mine = rows[parts.processes.positions(len(rows))]
  needed, facts = parts.stages.needs.updated, table.at(mine)
  further = {name: x for name, x in facts.columns.items()
             if name in needed and name not in tokens.declared}
  if 'identity' in needed:  # it seeds the rejection's draws
    further['identity'] = np.stack([
        np.full(len(mine), parts.stages.settings.seed), facts.group,
        facts.sample], 1).astype(np.uint32)
  return rows_lib.learner_batch(
      tokens, mine, facts.advantage, facts.trained, **further)
