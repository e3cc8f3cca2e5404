"""Reinforcement learning from verifiable rewards: the loop.

  python -m jaxrl_llm.train --config=configs/countdown.py

One prompt's way through a step: the curriculum picks it, the sampler answers
it, the verifier judges the answers, rewards become advantages, the selection
picks rows, the learner takes its optimiser steps. Data moves one way; what
comes back to an earlier stage is values. The same command again takes up a run
that was cut off, at its last checkpoint, and goes on bit for bit.
"""

import contextlib
import json
import math
import pathlib
import sys
import time
from typing import Any, Mapping, NamedTuple

from absl import logging
import jax
from ml_collections import ConfigDict
import numpy as np
import rich

from jaxrl_llm import (
  batching,
  checkpoint,
  evaluate,
  experiment,
  flops,
  metrics,
  plots,
  progress,
  step_metrics,
  warm_start,
)
from jaxrl_llm import config as config_lib
from jaxrl_llm import rewards as rewards_lib
from jaxrl_llm import workdir as workdir_lib
from jaxrl_llm.curriculum import uniform
from jaxrl_llm.learner import TrainState
from jaxrl_llm.selection import take_all
from jaxrl_llm.types import LearnerBatch

SKIPPED_LIMIT = 3  # Non-finite updates in a row that stop the run.


class RunState(NamedTuple):
  """All that survives a step.

  Attributes:
    step: steps done.
    learner: parameters and optimiser, on the device.
    curriculum: which problems were handed out.
    selection: what choosing rows needs to remember.
    solved: [D] bool, training problems solved at least once.
  """
  step: int
  learner: TrainState
  curriculum: uniform.State
  selection: take_all.State
  solved: np.ndarray


class Fixed(NamedTuple):
  """What stays the same over a run's steps, on the device.

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


class Outcome(NamedTuple):
  """What a step leaves beside its state.

  Attributes:
    row: its metrics.
    records: one for every response, as `samples.jsonl` has them.
    tokens: response tokens sampled.
    flops: model FLOPs by phase.
  """
  row: dict[str, float]
  records: list[dict[str, Any]]
  tokens: int
  flops: dict[str, float]


def take_step(
    parts: experiment.Parts, state: RunState, fixed: Fixed,
    timer: metrics.Timer) -> tuple[RunState, Outcome]:
  """One turn of the loop.

  Args:
    parts: of the run.
    state: before the step.
    fixed: what does not change.
    timer: seconds per phase.

  Returns:
    The state after the step, and what else came of it.

  Raises:
    FloatingPointError: too many updates in a row had a loss or gradient that
      is not finite; the last batch is saved.
  """
  config, task = parts.config, parts.task
  groups = config.prompts_per_step, config.samples_per_prompt

  with timer('propose'):
    curriculum, picked = uniform.propose(
        state.curriculum, problems=len(task.train), count=groups[0],
        seed=config.seed)
    problems = [task.train[i] for i in picked]
    prompts = batching.encode(problems, task.tokenizer, config.max_prompt)
    requests = batching.grouped_requests(
        prompts.problem_id, groups[1], config.max_response)

  with timer('relayout'):
    weights = jax.block_until_ready(
        parts.policy.to_sampling(state.learner.params, fixed.frozen))

  with timer('sample'):
    step = parts.put(np.uint32(state.step))
    rollouts, use = parts.sample(
        weights, prompts, requests, parts.step_key(step), fixed.sampling,
        policy_step=int(jax.device_get(state.learner.step)))
  del weights  # The update needs their room.

  with timer('verify'):
    texts = batching.texts(rollouts, task.tokenizer)
    asked = [problems[i] for i in requests.prompt]
    verdicts = rewards_lib.verify_all(task, asked, texts, rollouts.truncated)
    rewards = np.array([v.reward for v in verdicts], np.float32)
    valid = np.array([v.valid for v in verdicts])

  with timer('batch'):
    advantages, trained, measured = jax.device_get(
        parts.credit(*parts.put([x.reshape(groups) for x in (
            rewards, valid, rollouts.length, rollouts.truncated)]), step))
    advantages, trained = advantages.reshape(-1), trained.reshape(-1)
    selection, chosen = take_all.select(
        state.selection, valid, advantages,
        signal_only=config.selection.signal_only)
    batch = batching.learner_batch(
        prompts, requests, rollouts, advantages, keep=chosen,
        trained=trained)

  with timer('score'):
    batch = with_scores(parts, state.learner, fixed, batch)

  with timer('update'):
    learner, updates = state.learner, []
    for part in batching.minibatches(
        batch, epochs=config.learner.epochs, updates=config.learner.updates,
        seed=(config.seed, state.step)):
      learner, result = parts.learner.update(
          learner, parts.put_rows(part), fixed.loss, fixed.frozen)
      updates.append(jax.device_get(result))
      if updates[-1]['skipped_in_row'] >= SKIPPED_LIMIT:
        raise_not_finite(config, state.step + 1, part)

  curriculum = uniform.update(
      curriculum, prompts.problem_id, rewards.reshape(groups))
  selection = take_all.update(selection, advantages)
  solved = state.solved.copy()
  # A problem may have been picked twice.
  np.logical_or.at(
      solved, picked, (valid & (rewards >= 1.0)).reshape(groups).any(1))
  row = {
      **step_metrics.of_rollouts(
          rollouts, rewards.reshape(groups), valid.reshape(groups),
          advantages.reshape(groups), [v.kind for v in verdicts], use),
      **{name: float(value) for name, value in measured.items()},
      **step_metrics.of_solved(solved, parts.kinds),
      **step_metrics.of_updates(updates)}
  records = [
      dict(step=state.step + 1, problem_id=problem.id, kind=problem.kind,
           prompt=problem.prompt, response=text, reward=verdict.reward,
           verdict=verdict.kind, detail=verdict.detail)
      for problem, text, verdict in zip(asked, texts, verdicts)]
  work = dict(
      sample=flops.sample(
          parts.model, prompts.length, batch.prompt_length, rollouts.length),
      update=config.learner.epochs * flops.update(
          parts.model, batch.prompt_length, batch.response_length,
          frozen=fixed.frozen is not None))
  return (RunState(state.step + 1, learner, curriculum, selection, solved),
          Outcome(row, records, int(rollouts.length.sum()), work))


def with_scores(
    parts: experiment.Parts, learner: TrainState, fixed: Fixed,
    batch: LearnerBatch) -> LearnerBatch:
  """Adds the log-probs that the loss needs of other policies.

  Those of the old policy only where a step makes several updates: the first
  update of a rollout finds them on its own way.
  """
  several = parts.config.learner.epochs * parts.config.learner.updates > 1
  if not several and fixed.anchor is None:
    return batch
  rows, scores = parts.put_rows(batch), {}
  if several:
    scores['old_logprobs'] = parts.learner.score(
        learner.params, rows, fixed.loss.temperature, fixed.frozen)
  if fixed.anchor is not None:
    scores['anchor_logprobs'] = parts.learner.score(
        fixed.anchor, rows, fixed.loss.temperature, fixed.frozen)
  return batch.replace(**jax.device_get(scores))


def raise_not_finite(config: ConfigDict, step: int, batch: LearnerBatch):
  """Saves the batch that made the last update fail, and ends the run."""
  path = pathlib.Path(config.workdir, 'not_finite.npz')
  arrays = {k: v for k, v in vars(batch).items() if v is not None}
  np.savez(path, **arrays)
  raise FloatingPointError(
      f'{SKIPPED_LIMIT} updates in a row, the last in step {step}, had a loss '
      f'or gradient that is not finite; the parameters are those before them. '
      f'The last batch is in {path}: look for what is wrong in it, or begin in '
      'another workdir with a lower optimizer.learning_rate.')


def begin(learner: TrainState, problems: int) -> RunState:
  """The state before the first step, of so many training problems."""
  return RunState(
      step=0, learner=learner, curriculum=uniform.init(),
      selection=take_all.init(), solved=np.zeros(problems, bool))


def due(step: int, every: int, last: int) -> bool:
  """Whether something that is done every few steps, and last, is done now."""
  return step == last or (every > 0 and step % every == 0)


def summary(
    start: Mapping[str, float], final: Mapping[str, float], seconds: float,
    steps: int) -> dict[str, Any]:
  """What `summary.json` says: held-out figures at both ends of the run."""
  def value(figures, name):
    x = figures.get(name, math.nan)
    return None if math.isnan(x) else x

  names = [
      name for name in final
      if name.startswith(('pass@', 'greedy')) and not name.endswith('_error')]
  return {
      **{name: {'start': value(start, name), 'final': value(final, name)}
         for name in names},
      'seconds': seconds, 'steps': steps}


def train(config: ConfigDict, name: str = 'run') -> dict[str, Any]:
  """Runs a config from its beginning, or from its last checkpoint, to its end.

  Args:
    config: checked by `config.validate`.
    name: of the config, for the display.

  Returns:
    What `summary.json` says.

  Raises:
    ValueError: the config does not fit itself, or the checkpoint in its
      workdir; or nothing can be written there, or another run is doing so.
    FloatingPointError: the loss ceased to be finite.
  """
  with workdir_lib.held(config.workdir) as workdir:
    return _run(config, name, workdir)


def _run(
    config: ConfigDict, name: str, workdir: pathlib.Path) -> dict[str, Any]:
  """`train`, in a folder that is held."""
  began = time.monotonic()
  parts = experiment.build(config)
  saver = checkpoint.Checkpointer(
      workdir / 'checkpoints', parts.described(), keep=config.checkpoint.keep)
  found = saver.restore(
      begin(parts.learner.state, len(parts.task.train)),
      differs=lambda saved: config_lib.difference(
          saved, parts.described(), config_lib.free_to_change(config)))
  workdir_lib.write_whole(workdir / 'config.json', config_lib.to_json(config))
  writer = metrics.Writer(
      workdir, found.step + 1 if found else 0,
      tensorboard=config.log.tensorboard, wandb=config.log.wandb,
      config=config.to_dict())

  with (progress.Display(name, show=config.log.display) as display,
        contextlib.closing(parts), contextlib.closing(saver),
        contextlib.closing(writer)):
    display.note(parts.layout())

    def evaluation(learner):
      weights = parts.policy.to_sampling(learner.params, frozen)
      with display.phase('evaluation'):
        figures = evaluate.heldout(parts, weights)
      return figures, {f'eval/{k}': value for k, value in figures.items()}

    def save(state, score):
      host = dict(
          start=start, latest=latest, seconds=time.monotonic() - began)
      saver.save(state.step, state, host, score=score)

    with display.phase(
        'warm start' if config.warm_start.steps else 'weights',
        config.warm_start.steps):
      params, frozen, anchor = warm_start.begin(
          parts, display.update, resumed=found is not None)
    fixed = Fixed(
        sampling=parts.sampling(),
        loss=parts.put(experiment.loss_params(config)), anchor=anchor,
        frozen=frozen)

    if found is None:
      state = begin(parts.learner.init(params), len(parts.task.train))
      start, row = evaluation(state.learner)
      latest = start
      writer.write(0, row)
      save(state, start.get('mean'))
    else:
      state = found.state
      start, latest = found.host['start'], found.host['latest']
      began -= found.host['seconds']
      display.note(f'Going on from step {state.step} of {config.steps}.')
    del params  # the state and the anchor have their own

    rate = flops.matmul_rate(parts.model.dtype)
    timer = metrics.Timer()
    with display.phase('RL', config.steps, state.step):
      while state.step < config.steps:
        with jax.transfer_guard('disallow'):
          state, outcome = take_step(parts, state, fixed, timer)
        row = outcome.row | metrics.speed(
            timer.take(), tokens=outcome.tokens, flops=outcome.flops,
            rate=rate, memory=flops.peak_memory())
        score = None
        evaluated = due(state.step, config.eval.every, config.steps)
        if evaluated:
          latest, figures = evaluation(state.learner)
          row |= figures
          score = latest.get('mean')
          timer.take()  # an evaluation is no part of the next step
        if evaluated or due(state.step, config.log.every, config.steps):
          writer.write(state.step, row)
          writer.samples(outcome.records[:config.log.samples])
        if due(state.step, config.checkpoint.every, config.steps):
          save(state, score)
        display.update(state.step, row, sample_line(outcome.records[0]))

  result = summary(start, latest, time.monotonic() - began, state.step)
  try:
    workdir_lib.write_whole(
        workdir / 'summary.json', json.dumps(result, indent=1))
    plots.curves(workdir, name)
  except OSError as error:  # A full disk does not cost the table below.
    logging.warning(
        'The summary and curves of %s could not be written (%s).', workdir,
        error.strerror)
  if config.log.display:
    unknown = dict.fromkeys(latest, math.nan)  # eval.k may have changed
    rich.print(progress.results({**unknown, **start}, latest))
    print(f'{workdir}: summary.json, curves.png, samples.jsonl, checkpoints/')
  return result


def sample_line(record: Mapping[str, Any]) -> str:
  """A response for the display."""
  return f'{record["prompt"]} {record["response"]}  [{record["verdict"]}]'


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
