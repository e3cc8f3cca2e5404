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
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict
import numpy as np
import rich

from jaxrl_llm import (
    checkpoint,
    experiment,
    programs,
    rollout,
    schedules,
    warm_start,
)
from jaxrl_llm import config as config_lib
from jaxrl_llm import workdir as workdir_lib
from jaxrl_llm.curriculum import uniform
from jaxrl_llm.evaluation import heldout
from jaxrl_llm.learner import batches, rounds
from jaxrl_llm.learner import loss as loss_lib
from jaxrl_llm.learner.update import TrainState
from jaxrl_llm.monitoring import (
    flops,
    metrics,
    progress,
    step_metrics,
    summary,
    timing,
)
from jaxrl_llm.selection import all_rows


class RunState(NamedTuple):
  """State of a run between two steps.

  Attributes:
    step: steps done.
    learner: parameters and optimiser, on the device.
    curriculum: state of the curriculum.
    selection: state of the selection.
    solved: [D] bool, training problems solved at least once.
  """
  step: int
  learner: TrainState
  curriculum: uniform.State
  selection: all_rows.State
  solved: np.ndarray


class Fixed(NamedTuple):
  """Device values that are the same in every step.

  Attributes:
    sampling: SamplingParams.
    loss: LossParams.
    anchor: parameters of the KL penalty's frozen model, or None.
    frozen: parameters that are not trained, or None.
  """
  sampling: Any
  loss: Any
  anchor: Any
  frozen: Any = None


def take_step(
    parts: experiment.Parts, state: RunState, fixed: Fixed,
    timer: timing.Timer) -> tuple[RunState, step_metrics.Report]:
  """Takes one step of the loop.

  Args:
    parts: of the run.
    state: before the step.
    fixed: what does not change.
    timer: seconds per phase.

  Returns:
    The state after the step, and what the step reports.

  Raises:
    FloatingPointError: too many updates in a row had a loss or gradient that
      is not finite; the last batch is saved.
  """
  config, task, learner = parts.config, parts.task, parts.programs.learner
  shape = config.prompts_per_step, config.samples_per_prompt

  with timer('propose'):
    curriculum, picked = uniform.propose(
        state.curriculum, problems=len(task.train), count=shape[0],
        seed=config.seed)
    problems = [task.train[i] for i in picked]
    prompts = rollout.encode(problems, task.tokenizer, config.max_prompt)
    asked = rollout.Asked(problems, prompts, rollout.grouped_requests(
        prompts.problem_id, shape[1], config.max_response))

  with timer('reshard'):
    weights = jax.block_until_ready(
        parts.programs.policy.to_sampling(state.learner.params, fixed.frozen))

  with timer('sample'):
    step = parts.replicate(np.uint32(state.step))
    responses = rollout.respond(
        parts.sample, weights, asked, parts.step_key(step), fixed.sampling,
        tokenizer=task.tokenizer,
        policy_step=int(jax.device_get(state.learner.step)))
  del weights  # The update needs their room.

  with timer('verify'):
    verdicts = rollout.submit(task, responses)()
    rewards = np.array([v.reward for v in verdicts], np.float32)
    valid = np.array([v.valid for v in verdicts])

  with timer('batch'):
    rollouts = responses.rollouts
    advantages, trained, measured = jax.device_get(
        parts.advantages(*parts.replicate([x.reshape(shape) for x in (
            rewards, valid, rollouts.length, rollouts.truncated)]), step))
    advantages, trained = advantages.reshape(-1), trained.reshape(-1)
    selection, chosen = all_rows.select(
        state.selection, valid, advantages,
        drop_zero_advantage=config.drop_zero_advantage)
    batch = batches.learner_batch(
        prompts, asked.requests, rollouts, advantages, keep=chosen,
        trained=trained, behaviour=config.loss.behaviour)

  with timer('score'):
    old = state.learner.params if programs.needs_old_logprobs(config) else None
    batch = rounds.with_scores(
        learner, batch, old, fixed.anchor, fixed.loss, fixed.frozen,
        shard_rows=parts.shard_rows)

  with timer('update'):
    train_state, updates = rounds.update(
        learner, state.learner, batch, fixed.loss, fixed.frozen,
        config=config, step=state.step, shard_rows=parts.shard_rows)

  curriculum = uniform.update(
      curriculum, prompts.problem_id, rewards.reshape(shape))
  selection = all_rows.update(selection, advantages)
  solved = step_metrics.solve(
      state.solved, picked, (valid & (rewards >= 1.0)).reshape(shape))
  report = step_metrics.report(
      responses, verdicts, updates, step=state.step + 1,
      rewards=rewards.reshape(shape), valid=valid.reshape(shape),
      advantages=advantages.reshape(shape), measured=measured, solved=solved,
      kinds=parts.kinds, flops=flops.of_step(
          parts.programs.model, prompts, rollouts, batch,
          epochs=config.learner.epochs, frozen=fixed.frozen is not None))
  return RunState(
      state.step + 1, train_state, curriculum, selection, solved), report


def init_state(learner: TrainState, problems: int) -> RunState:
  """Returns the state before the first step; `problems` is D."""
  return RunState(
      step=0, learner=learner, curriculum=uniform.init(),
      selection=all_rows.init(), solved=np.zeros(problems, bool))


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
  """
  with workdir_lib.held(config.workdir) as workdir:
    return _run(config, name, workdir)


def _run(
    config: ConfigDict, name: str, workdir: pathlib.Path) -> dict[str, Any]:
  """`train`, in a folder that is held."""
  began = time.monotonic()
  parts = experiment.build(config)
  policy, learner = parts.programs.policy, parts.programs.learner
  problems = len(parts.task.train)
  saver = checkpoint.Checkpointer(
      workdir / 'checkpoints', parts.described(), keep=config.checkpoint.keep)
  found = saver.restore(
      init_state(learner.state, problems),
      differs=lambda saved: config_lib.resume_conflicts(
          saved, parts.described()))
  if found:
    began -= found.host['seconds']
  workdir_lib.write_whole(workdir / 'config.json', config_lib.to_json(config))
  writer = metrics.Writer(
      workdir, found.step + 1 if found else 0,
      tensorboard=config.log.tensorboard, wandb=config.log.wandb,
      config=config.to_dict())

  with (progress.Display(name, show=config.log.display) as display,
        contextlib.closing(parts), contextlib.closing(saver),
        contextlib.closing(writer)):
    display.note(parts.layout())

    def evaluate(state, frozen):
      weights = policy.to_sampling(state.learner.params, frozen)
      with display.phase('evaluation'):
        return heldout.evaluate(parts, weights)

    def save(state, start, latest, score):
      saver.save(state.step, state, dict(
          start=start, latest=latest, seconds=time.monotonic() - began),
          score=score)

    with display.phase(
        'warm start' if config.warm_start.steps else 'weights',
        config.warm_start.steps):
      params, frozen, anchor = warm_start.start(
          parts, display.update, resumed=found is not None)
    fixed = Fixed(
        sampling=parts.sampling(),
        loss=parts.replicate(loss_lib.params(config)), anchor=anchor,
        frozen=frozen)

    if found is None:
      state = init_state(learner.init(params), problems)
      start = latest = evaluate(state, frozen)
      writer.write(0, {f'eval/{k}': value for k, value in start.items()})
      save(state, start, latest, start.get('mean'))
    else:
      state = found.state
      start, latest = found.host['start'], found.host['latest']
      display.note(f'Going on from step {state.step} of {config.steps}.')
    del params  # The state and the anchor have their own.

    rate = flops.matmul_rate(parts.programs.model.dtype)
    timer = timing.Timer()
    with display.phase('RL', config.steps, state.step):
      while state.step < config.steps:
        with jax.transfer_guard('disallow'):
          state, report = take_step(parts, state, fixed, timer)
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
        if evaluated or schedules.due(
            state.step, config.log.every, config.steps):
          writer.write(state.step, row)
          writer.samples(report.records[:config.log.samples])
        if schedules.due(state.step, config.checkpoint.every, config.steps):
          save(state, start, latest, score)
        display.update(
            state.step, row, progress.sample_line(report.records[0]))

  result = summary.summary(
      start, latest, time.monotonic() - began, state.step)
  summary.write(workdir, result, name)
  if config.log.display:
    rich.print(progress.results(start, latest))
    print(f'{workdir}: summary.json, curves.png, samples.jsonl, checkpoints/')
  return result


def main() -> None:
  """The program."""
  config, name = config_lib.parse(sys.argv[1:])
  try:
    train(config, name)
  except (OSError, ValueError, FloatingPointError) as error:
    sys.exit(f'{error}')
  except KeyboardInterrupt:
    sys.exit('Interrupted; the same command goes on from the last checkpoint.')


if __name__ == '__main__':
  main()
