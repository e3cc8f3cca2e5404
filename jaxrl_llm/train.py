"""Reinforcement learning from verifiable rewards: the loop.

  python -m jaxrl_llm.train --config=configs/countdown.py

One prompt's way through a step: the curriculum picks it, the sampler answers
it, the verifier judges the answers, rewards become advantages, the selection
picks rows, the learner takes its optimiser steps. Data moves one way; what
comes back to an earlier stage is values. The same command again continues a
run that was cut off, from its last checkpoint, bit for bit.
"""

import contextlib
import sys
import time
from typing import Any

import jax
from ml_collections import ConfigDict
import numpy as np
import rich

from jaxrl_llm import checkpoint, phases, rewards, schedules, sharding
from jaxrl_llm import config as config_lib
from jaxrl_llm.evaluation import heldout
from jaxrl_llm.host import buffer as buffer_lib
from jaxrl_llm.host import build, choices, rollout, rounds, stages, warm_start
from jaxrl_llm.host import programs as programs_lib
from jaxrl_llm.host.state import complete, digests, Fixed, init_state, RunState
from jaxrl_llm.monitoring import (
  compiles,
  ends,
  flops,
  metrics,
  progress,
  step_metrics,
  summary,
  timing,
)
from jaxrl_llm.sharding import cpu, distributed
from jaxrl_llm.storage import workdir as workdir_lib
from jaxrl_llm.types import NoSignalError, rows_of, Stopped


def take_step(
    parts: build.Parts, state: RunState, fixed: Fixed,
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
    Stopped: a process was asked to stop; the state before is unchanged.
    FloatingPointError: too many updates in a row had a loss or gradient that
      is not finite; the last batch is saved.
  """
  config, task, programs = parts.config, parts.task, parts.programs
  processes = parts.processes
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
        tokenizer=task.tokenizer, processes=processes, policy_step=policy_step)
  del weights  # The update needs their room.

  # The user's code may use JAX as it likes.
  with timer('verify'), jax.transfer_guard('allow'):
    judged = rollout.submit(task, responses, processes)()
    rollout.check(judged, responses)
    processes.channel.check()

  held, size = state.buffer, programs_lib.scored_rows(programs)
  first = len(held.table.group)  # row of a wave's first rollout

  def signal_of(ask, wave):
    return rounds.signal(
        parts.advantages, buffer_lib.join(held.table, wave), ask, step,
        first=first, prompts=choose.max_prompts, samples=samples,
        replicate=parts.replicate)

  def score(tokens, rows):
    return rounds.with_scores(
        learner, tokens, rows, tuple(p.params for p in state.learners),
        fixed.anchor, fixed.loss, frozen, table=sampled, processes=processes)

  with timer('batch'):
    wave = buffer_lib.of_wave(ask, responses, judged, config, parts.stages)
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
        processes=processes)
    buffer = buffer_lib.keep(
        buffer_lib.Buffer(done.table, tokens), config, parts.stages,
        curriculum, done.selection)

  solved = step_metrics.solve(
      state.solved, sampled.problem, sampled.valid & (sampled.reward >= 1.0))
  report = step_metrics.report(
      responses, judged, done.metrics, step=state.step + 1, ask=ask,
      wave=sampled, gain=signal.gain, solved=solved, kinds=parts.kinds,
      groups=config.log.samples, processes=processes,
      measured={
          **signal.metrics, **measured, **choose.metrics(curriculum),
          **select.metrics(done.selection), **step_metrics.of_rounds(
              done.picked, int((buffer.table.group >= 0).sum()))},
      flops=flops.of_step(
          programs.model, asked, judged.length,
          [(tokens.prompt_length[rows], tokens.length[rows])
           for rows, *_ in done.picked],
          epochs=config.learner.epochs, frozen=frozen is not None,
          actor=programs.players[writer.player].model
          if writer.player else None))
  state = RunState(
      state.step + 1, state.rounds + len(taken), done.learners, curriculum,
      done.selection, buffer, flight, solved)
  processes.channel.agree(digests(state), f'after step {state.step}')
  return state, report


def train(config: ConfigDict, name: str = 'run') -> dict[str, Any]:
  """Runs a config from its beginning, or from its last checkpoint, to its end.

  Args:
    config: checked by `config.validate`.
    name: of the config; with model and task, it is the name that is shown.

  Returns:
    The content of `summary.json`.

  Raises:
    ValueError: the config does not fit itself, or the checkpoint in its
      workdir; or nothing can be written there, or another run is doing so.
    FloatingPointError: the loss is no longer finite.
    OSError: the disk is full at the beginning or at the end, or the workdir was
      removed; the message says where the state is.
    Stopped: SIGTERM or SIGINT came; the state is saved.
  """
  with (ends.stoppable(config.checkpoint.grace) as asked,
        workdir_lib.held(config.workdir, distributed.first()) as workdir):
    return _run(config, name, workdir, asked)


def _run(
    config: ConfigDict, name: str, workdir: workdir_lib.Folder, asked: Any,
) -> dict[str, Any]:
  """`train`, in a folder that is held; `asked` is an event that stops it."""
  began, name = time.monotonic(), config_lib.title(config, name)
  with progress.Display(
      name, show=distributed.first(), brief=not config.log.display) as display:
    display.say(f'{name}, in {workdir.path}')
    parts = build.parts(config)
    parts.processes.channel.listen_to(asked)
    state, start, latest, compiled = _loop(parts, workdir, began, display)
  if not parts.processes.channel.first:
    return {}
  summary.check(state.step, state.rounds)
  result = summary.summary(
      start, latest, time.monotonic() - began, state.step, compiled)
  line, fault = summary.end(workdir, result, name, checkpoint.whole_steps(
      workdir.path / 'checkpoints'))
  if config.log.display:
    rich.print(progress.results(start, latest))
    if said := parts.stages.curriculum.summary(state.curriculum):
      print(said)
  print(line)
  if fault:
    raise OSError(fault)
  return result


def _loop(
    parts: build.Parts, workdir: workdir_lib.Folder, began: float,
    display: progress.Display) -> tuple[RunState, Any, Any, compiles.Compiles]:
  """Takes the steps; returns the last state and both ends' evaluations."""
  config, channel = parts.config, parts.processes.channel
  policy, learner = parts.programs.policy, parts.programs.learner
  channel.agree(parts.compared(), 'between the processes')
  workdir_lib.check_shared(workdir.path, channel)
  saver = checkpoint.Checkpointer(
      workdir.path / 'checkpoints', parts.described(),
      keep=config.checkpoint.keep, timeout=config.checkpoint.timeout,
      channel=channel)
  found = saver.restore(
      init_state(parts, learner.state),
      differs=lambda saved: config_lib.resume_conflicts(
          saved, parts.described()))
  if found:
    began -= found.host['seconds']
  gone, writer = lambda: False, metrics.NoWriter()
  if channel.first:
    summary.begin(workdir, found.step if found else 0, config.steps)
    parts.describe(workdir.path)
    gone = workdir.watch()
    writer = metrics.Writer(
        workdir.local, found.step + 1 if found else 0,
        config=config.to_dict(), tensorboard=config.log.tensorboard,
        wandb=config.log.wandb, run=workdir.path)

  with (contextlib.closing(parts), contextlib.closing(saver),
        contextlib.closing(writer)):
    compiled = compiles.first(display.note)
    compiles.expect(parts.large_programs())
    display.note(parts.ends() + parts.updates() + parts.layout())
    if size := buffer_lib.size(config, parts.stages):
      display.note(size)

    # What is due after the last step: its evaluation, row and checkpoint.
    notes = dict(start=None, latest=None, due=None)
    if found:
      notes.update({k: v for k, v in found.host.items() if k in notes})

    def host():
      return {**notes, 'seconds': time.monotonic() - began}

    def save(state, score=None, again=False):
      complete(state, parts.processes)
      workdir.sync()  # A run that goes on has the rows up to its checkpoint.
      saver.save(state.step, state, host(), score=score, again=again)

    def check_workdir(state):
      if any(channel.gather(gone())):
        complete(state, parts.processes)
        raise FileNotFoundError(checkpoint.rescue(
            workdir.path, parts.describe, parts.described(), state.step, state,
            host(), channel))

    starts = []
    for number in range(len(parts.programs.players)):
      with phases.phase('weights' + ' of the actor' * number):
        starts.append(warm_start.start(
            parts.player(number), display.update, resumed=bool(found)))
    params, every, anchors = zip(*starts)
    frozen = every[0]
    fixed = Fixed(
        sampling=parts.sampling(),
        loss=parts.replicate(choices.loss_params(config)), anchor=anchors[0],
        frozen=every)
    if found:
      state = found.state
      display.note(f'Going on from step {state.step} of {config.steps}.')
    else:
      state = init_state(parts, learner.init(*params))
      notes['due'] = dict(row={}, records=[], sample='')
    del params, starts  # The state and the anchor have their own.

    def finish(state):
      """Evaluates, writes, saves and shows what is due after a step."""
      row, records, sample = notes['due'].values()
      step, score = state.step, None
      again = bool(found) and found.step == step  # saved before it was done
      evaluated = not step or schedules.due(
          step, config.eval.every, config.steps)
      if evaluated:
        weights = policy.to_sampling(state.learner.params, frozen)
        notes['latest'] = heldout.evaluate(parts, weights)
        del weights
        if not step:
          notes['start'] = notes['latest']
        row = row | {f'eval/{k}': v for k, v in notes['latest'].items()}
        score = notes['latest'].get('mean')
        timer.take()  # An evaluation is no part of the next step.
        check_workdir(state)
      if evaluated or schedules.due(step, config.log.every, config.steps):
        writer.write(step, row)
        writer.samples(records)
      notes['due'] = None
      if not step or again or schedules.due(
          step, config.checkpoint.every, config.steps):
        save(state, score, again)
      if step and not again:
        display.update(step, row, sample)

    rate = flops.matmul_rate(parts.programs.model.dtype)
    timer = timing.Timer()
    try:
      if notes['due']:
        finish(state)
      with phases.phase('RL', config.steps, 'steps', state.step):
        while state.step < config.steps:
          try:
            with jax.transfer_guard('disallow'):
              state, report = take_step(parts, state, fixed, timer)
          except (rewards.VerifierError, NoSignalError):
            save(state)
            raise
          notes['due'] = dict(
              row=report.row | timing.speed(
                  timer.take(), tokens=report.tokens, flops=report.flops,
                  rate=rate, memory=flops.peak_memory()),
              records=report.records,
              sample=progress.sample_lines(report.sample))
          compiled()
          check_workdir(state)
          finish(state)
          cpu.return_memory()
          channel.check()
    except Stopped:
      save(state)
      saver.check(state.step)
      raise Stopped(
          f'Stopped after step {state.step} of {config.steps}, which is saved; '
          'the same command goes on.') from None
  return state, notes['start'], notes['latest'], compiled()


def main() -> None:
  """The program."""
  place, argv = distributed.parse(sys.argv[1:])
  config, name = config_lib.parse(
      argv, more=distributed.HELP, check=stages.validate)
  sharding.keep_memory(  # before there are threads
      config.mesh.keep_memory, large=config_lib.is_large(config))
  with distributed.joined(place, config, config_lib.flatten(config)), (
      ends.program(
          'Interrupted; the same command goes on from the last checkpoint.')):
    train(config, name)


if __name__ == '__main__':
  main()
