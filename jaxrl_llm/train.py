"""Reinforcement learning from verifiable rewards: the loop.

  python -m jaxrl_llm.train --config=configs/countdown.py

One prompt's way through a step: the curriculum picks it, the sampler answers
it, the verifier judges the answers, rewards become advantages, the selection
picks rows, the learner takes its optimiser steps. Data moves one way; what
comes back to an earlier stage is values. The same command again continues a
run that was cut off, from its last checkpoint, bit for bit.
"""

import contextlib
import pathlib
import sys
import time
from typing import Any

from absl import logging
import jax
from ml_collections import ConfigDict
import numpy as np
import rich

from jaxrl_llm import buffer as buffer_lib
from jaxrl_llm import (
    checkpoint,
    experiment,
    rewards,
    rollout,
    schedules,
    warm_start,
)
from jaxrl_llm import config as config_lib
from jaxrl_llm import programs as programs_lib
from jaxrl_llm import workdir as workdir_lib
from jaxrl_llm.evaluation import heldout
from jaxrl_llm.learner import loss as loss_lib
from jaxrl_llm.learner import rounds
from jaxrl_llm.monitoring import (
    ends,
    flops,
    metrics,
    progress,
    step_metrics,
    summary,
    timing,
)
from jaxrl_llm.run_state import Fixed, init_state, RunState
from jaxrl_llm.types import NoSignalError, rows_of


def take_step(
    parts: experiment.Parts, state: RunState, fixed: Fixed,
    timer: timing.Timer) -> tuple[RunState, step_metrics.Report]:
  """Takes one step of the loop: a wave of rollouts and its train batches.

  Args:
    parts: of the run.
    state: before the step.
    fixed: what does not change.
    timer: seconds per phase.

  Returns:
    The state after the step, and what the step reports.

  Raises:
    VerifierError: the verifier failed on every response, or returned something
      that is not a reward.
    NoSignalError: see `types.Curriculum`.
    FloatingPointError: too many updates in a row had a loss or gradient that
      is not finite; the last batch is saved.
  """
  config, task, programs = parts.config, parts.task, parts.programs
  learner, writer, (choose, select) = (
      programs.learner, programs.writer, parts.stages)
  frozen, samples = fixed.frozen[0], config.samples_per_prompt

  with timer('propose'):
    curriculum, ask = choose.propose(state.curriculum)
    problems = [task.train[i] for i in ask.problem]
    asked = rollout.Asked(
        problems, rollout.encode(problems, task.tokenizer, config.max_prompt),
        rollout.requests_of(
            ask, problems=len(task.train), samples=samples,
            budget=config.max_response))

  with timer('reshard'):
    weights = jax.block_until_ready(
        writer.to_sampling(
            state.learners[writer.player].params,
            fixed.frozen[writer.player]))

  with timer('sample'):
    step = parts.replicate(np.uint32(state.step))
    policy_step = int(jax.device_get(state.learner.step))
    responses = rollout.respond(
        parts.sample, weights, asked, parts.step_key(step), fixed.sampling,
        tokenizer=task.tokenizer, policy_step=policy_step)
  del weights  # The update needs their room.

  # The user's code may use JAX as it likes.
  with timer('verify'), jax.transfer_guard('allow'):
    verdicts = rollout.submit(task, responses)()
    rewards.check_step(verdicts, responses.texts)

  held, size = state.buffer, programs_lib.scored_rows(config, parts.stages)
  first = len(held.table.group)  # row of a wave's first rollout

  def signal_of(ask, wave):
    return rounds.signal(
        parts.advantages, buffer_lib.join(held.table, wave), ask, step,
        first=first, prompts=choose.max_prompts, samples=samples,
        replicate=parts.replicate)

  def score(tokens, rows):
    return rounds.with_scores(
        learner, tokens, rows,
        tuple(player.params for player in state.learners), fixed.anchor,
        fixed.loss, frozen, shard_rows=parts.shard_rows)

  with timer('batch'):
    wave = buffer_lib.of_wave(ask, responses, verdicts, config, parts.stages)
    sampled = wave.table
    signal = signal_of(ask, sampled)

  arrived, seen, flight = ask, signal, ()
  if state.flight:
    with timer('score'):  # by the policy that wrote them, before it learns
      wave = wave._replace(tokens=score(
          wave.tokens, rounds.at_their_places(sampled.valid, size)))
    with timer('batch'):
      flight, arrived, wave = buffer_lib.exchange(
          state.flight, ask, wave, config, parts.stages)
      seen = signal_of(arrived, wave.table)

  with timer('batch'):
    table = buffer_lib.join(held.table, wave.table)
    with timer('select'):
      selection = select.feedback(
          state.selection, step_metrics.probe(wave.table, policy_step))
    curriculum = choose.update(
        curriculum, arrived, table, seen.signal, seen.gain)
    curriculum, taken = choose.take(curriculum)
    taken = [
        buffer_lib.batch_rows(table, groups, samples) for groups in taken]
    table, measured = rounds.with_advantages(
        parts.advantages, table, taken, step, replicate=parts.replicate)

  with timer('score'):
    tokens = wave.tokens
    if not flight:
      waiting = rows_of(table, choose.holds(curriculum), samples)
      tokens = score(tokens, rounds.to_score(
          table, [*taken, waiting], first=first, size=size,
          drop_zero_advantage=config.drop_zero_advantage))
    tokens = buffer_lib.join(held.tokens, tokens)

  def chosen_rows(*of_round):
    with timer('select'):
      return select.select(*of_round)

  with timer('update'):
    done = rounds.run(
        learner, state.learners, table, tokens, taken, chosen_rows, selection,
        fixed.loss, frozen, config=config, rounds=state.rounds,
        step=state.step + 1, policy_step=policy_step,
        keep_writer=programs_lib.keeps_writer(config, parts.stages),
        shard_rows=parts.shard_rows)
    buffer = buffer_lib.keep(
        buffer_lib.Buffer(done.table, tokens), config, parts.stages,
        curriculum, done.selection)

  solved = step_metrics.solve(
      state.solved, sampled.problem, sampled.valid & (sampled.reward >= 1.0))
  report = step_metrics.report(
      responses, verdicts, done.metrics, step=state.step + 1, ask=ask,
      wave=sampled, gain=signal.gain, solved=solved, kinds=parts.kinds,
      measured={
          **signal.metrics, **measured, **choose.metrics(curriculum),
          **select.metrics(done.selection), **step_metrics.of_rounds(
              done.picked, int((buffer.table.group >= 0).sum()))},
      flops=flops.of_step(
          programs.model, asked, responses.rollouts.length,
          [(tokens.prompt_length[rows], tokens.length[rows])
           for rows, *_ in done.picked],
          epochs=config.learner.epochs, frozen=frozen is not None,
          actor=programs.players[writer.player].model
          if writer.player else None))
  return RunState(
      state.step + 1, state.rounds + len(taken), done.learners, curriculum,
      done.selection, buffer, flight, solved), report


def _describe(parts: experiment.Parts, workdir: pathlib.Path) -> None:
  """Writes what a run in a folder needs to go on, beside its checkpoints."""
  asked = parts.asked.copy_and_resolve_references()
  asked.workdir = str(workdir)
  workdir_lib.write_whole(
      workdir / 'choices.json', config_lib.choices(parts.config))
  workdir_lib.write_whole(workdir / 'config.json', config_lib.to_json(asked))


def train(config: ConfigDict, name: str = 'run') -> dict[str, Any]:
  """Runs a config from its beginning, or from its last checkpoint, to its end.

  Args:
    config: checked by `config.validate`.
    name: of the config, for the display.

  Returns:
    The content of `summary.json`.

  Raises:
    ValueError: the config does not fit itself, or the checkpoint in its
      workdir; or nothing can be written there, or another run is doing so.
    FloatingPointError: the loss is no longer finite.
    OSError: the disk is full at the beginning or at the end, or the workdir was
      removed; the message says where the state is.
  """
  with workdir_lib.held(config.workdir) as workdir:
    return _run(config, name, workdir)


def _run(
    config: ConfigDict, name: str, workdir: pathlib.Path) -> dict[str, Any]:
  """`train`, in a folder that is held."""
  began = time.monotonic()
  parts = experiment.build(config)
  config = parts.config
  policy, learner = parts.programs.policy, parts.programs.learner
  saver = checkpoint.Checkpointer(
      workdir / 'checkpoints', parts.described(), keep=config.checkpoint.keep)
  found = saver.restore(
      init_state(parts, learner.state),
      differs=lambda saved: config_lib.resume_conflicts(
          saved, parts.described()))
  if found:
    began -= found.host['seconds']
  _describe(parts, workdir)
  gone = workdir_lib.watch(workdir)
  writer = metrics.Writer(
      workdir, found.step + 1 if found else 0,
      tensorboard=config.log.tensorboard, wandb=config.log.wandb,
      config=config.to_dict())

  with (progress.Display(name, show=config.log.display) as display,
        contextlib.closing(parts), contextlib.closing(saver),
        contextlib.closing(writer)):
    display.note(parts.layout())
    if size := buffer_lib.size(config, parts.stages):
      display.note(size)

    def evaluate(state, frozen):
      weights = policy.to_sampling(state.learner.params, frozen)
      with display.phase('evaluation'):
        return heldout.evaluate(parts, weights)

    def host(start, latest):
      return dict(
          start=start, latest=latest, seconds=time.monotonic() - began)

    def save(state, start, latest, score):
      saver.save(state.step, state, host(start, latest), score=score)

    def check_workdir(state, start, latest):
      if gone():
        raise FileNotFoundError(checkpoint.rescue(
            workdir, lambda place: _describe(parts, place), parts.described(),
            state.step, state, host(start, latest)))

    starts = []
    for number in range(len(parts.programs.players)):
      with display.phase(
          ('warm start' if config.warm_start.steps else 'weights')
          + ' of the actor' * number, config.warm_start.steps):
        starts.append(warm_start.start(
            parts.player(number), display.update, resumed=found is not None))
    params, every, anchors = zip(*starts)
    frozen = every[0]
    fixed = Fixed(
        sampling=parts.sampling(),
        loss=parts.replicate(loss_lib.params(config)), anchor=anchors[0],
        frozen=every)

    if found is None:
      state = init_state(parts, learner.init(*params))
      start = latest = evaluate(state, frozen)
      check_workdir(state, start, latest)
      writer.write(0, {f'eval/{k}': value for k, value in start.items()})
      save(state, start, latest, start.get('mean'))
    else:
      state = found.state
      start, latest = found.host['start'], found.host['latest']
      display.note(f'Going on from step {state.step} of {config.steps}.')
    del params, starts  # The state and the anchor have their own.

    rate = flops.matmul_rate(parts.programs.model.dtype)
    timer = timing.Timer()
    with display.phase('RL', config.steps, state.step):
      while state.step < config.steps:
        try:
          with jax.transfer_guard('disallow'):
            state, report = take_step(parts, state, fixed, timer)
        except (rewards.VerifierError, NoSignalError):
          save(state, start, latest, None)
          raise
        check_workdir(state, start, latest)
        row = report.row | timing.speed(
            timer.take(), tokens=report.tokens, flops=report.flops,
            rate=rate, memory=flops.peak_memory())
        score = None
        evaluated = schedules.due(state.step, config.eval.every, config.steps)
        if evaluated:
          latest = evaluate(state, frozen)
          row |= {f'eval/{k}': value for k, value in latest.items()}
          score = latest.get('mean')
          timer.take()  # An evaluation is no part of the next step.
          check_workdir(state, start, latest)
        if evaluated or schedules.due(
            state.step, config.log.every, config.steps):
          writer.write(state.step, row)
          writer.samples(step_metrics.chosen(
              report.groups, config.log.samples, state.step))
        if schedules.due(state.step, config.checkpoint.every, config.steps):
          save(state, start, latest, score)
        display.update(
            state.step, row, progress.sample_line(
                report.groups[0] if report.groups else ()))

  if config.steps and not state.rounds:
    logging.warning(
        'No train batch was full in %d steps, so nothing was learned: the '
        'curriculum dropped too many groups.', state.step)
  result = summary.summary(
      start, latest, time.monotonic() - began, state.step)
  saves = workdir / 'checkpoints'
  line, fault = summary.end(workdir, result, name, [
      step for step in checkpoint.steps(saves)
      if not checkpoint.fault(saves / str(step), thorough=False)])
  if config.log.display:
    rich.print(progress.results(start, latest))
    if said := parts.stages.curriculum.summary(state.curriculum):
      print(said)
    print(line)
  if fault:
    raise OSError(fault)
  return result


def main() -> None:
  """The program."""
  config, name = config_lib.parse(sys.argv[1:])
  with ends.program(
      'Interrupted; the same command goes on from the last checkpoint.'):
    train(config, name)


if __name__ == '__main__':
  main()
