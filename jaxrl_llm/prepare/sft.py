"""Supervised fine-tuning: likelihood of rows, before RL or alone.

The rows are those of the user's files, or the task's demonstrations. A phase
that is stopped is saved in its folder, and goes on from there.
"""

import contextlib
import math
import time
from typing import Any, Callable, NamedTuple

from absl import logging
import jax
import numpy as np

from jaxrl_llm import checkpoint, sharding
from jaxrl_llm import config as config_lib
from jaxrl_llm.base import phases, schedules
from jaxrl_llm.learner.learner import LearnerPrograms
from jaxrl_llm.learner.options import POLICY
from jaxrl_llm.loop.state import SKIPPED_LIMIT
from jaxrl_llm.prepare import build, choices, describe, sft_data
from jaxrl_llm.prepare import programs as programs_lib
from jaxrl_llm.storage import paths
from jaxrl_llm.types import LearnerBatch, Stopped

FOLDER = 'sft'  # of the policy's phase, in the workdir
_LARGEST = 700.0  # nats; the perplexity of 710 is beyond all floats

_SHOWN = ('loss', 'tokens', 'learning_rate', 'grad_norm', 'entropy',
          'heldout_loss', 'perplexity', 'skipped_in_row')

Report = Callable[[int, dict[str, float]], None]


class SftSetting(NamedTuple):
  """Constants of the phase's steps.

  Attributes:
    parts: of the run.
    data: rows and batches.
    learner: of the objective 'likelihood'.
    loss: its numbers, on the devices.
    frozen: parameters that are not trained, or None.
    folder: of the checkpoints.
  """
  parts: build.Parts
  data: sft_data.Data
  learner: LearnerPrograms
  loss: Any
  frozen: Any
  folder: paths.Path

  def saver(self) -> checkpoint.Checkpointer:
    """Opens the checkpoints, to write some."""
    parts, described = self.parts, describe.described(self.parts)
    if not config_lib.sft_of_lora(parts.config):
      described['lora'] = {**described['lora'], 'rank': 0}
    return checkpoint.Checkpointer(
        self.folder, {**described, 'sft_rows': self.data.digest},
        keep=parts.config.checkpoint.keep,
        timeout=parts.config.checkpoint.timeout,
        channel=parts.processes.channel)

  def conflicts(self, saved: dict[str, Any]) -> list[str]:
    """Returns the reasons why the phase cannot go on from a checkpoint."""
    lines = config_lib.difference(saved, describe.described(self.parts), [
        *settings(self.parts), 'contents.model'])
    return [*lines.values()] + ['the rows were others'] * (
        saved.get('sft_rows') != self.data.digest)

  def plan(self, batch: LearnerBatch) -> Any:
    """Plans the microbatches of a batch."""
    return self.parts.replicate(self.learner.plan(
        np.arange(len(batch.tokens)), batch.prompt_length,
        batch.response_length))


def settings(parts: build.Parts, *what: str) -> dict[str, Any]:
  """Returns the fields that the parameters depend on, beside the rows.

  Args:
    parts: of the run; its `config` has them with the choices of the run.
    *what: of `config.AFFECTS`, beside SFT.
  """
  config = parts.user_config.copy_and_resolve_references()
  for name in 'tokens_per_microbatch', 'remat':
    config.learner[name] = parts.config.learner[name]
  # The digest of a file's rows covers how a task words its problems.
  of_task = sft_data.DEMONSTRATIONS in sft_data.sources(config)
  found = {name: value for name, value in config_lib.affecting(
      config, config_lib.SFT, *what).items()
           if of_task or not name.startswith('task.')}
  if config_lib.sft_of_lora(config):
    found |= {f'lora.{k}': v for k, v in config.lora.items()}
  return found


def folder(player: str) -> str:
  """Returns the name of a player's folder in the workdir."""
  return FOLDER if player == POLICY else f'{FOLDER}-{player}'


def load(parts: build.Parts) -> sft_data.Data:
  """Reads the rows of a run.

  Raises:
    ValueError: see `sft_data.load`; or the mesh does not divide the batch.
  """
  config, programs = parts.config, parts.programs
  shards = sharding.data_shards(programs.learner_mesh)
  if config.sft.batch % shards and not config.sft.batch_tokens:
    of = sharding.learner_shards(programs.mesh, programs.learner_mesh)
    raise ValueError(
        f'sft.batch={config.sft.batch} does not divide over {of}: use a '
        f'multiple of {shards}.')
  return sft_data.load(config, parts.task, shards)


def run(
    parts: build.Parts, data: sft_data.Data, params: Any, frozen: Any,
    report: Report, *, name: str = FOLDER, keep: bool = False) -> Any:
  """Trains parameters on the rows.

  Args:
    parts: task, programs and config.
    data: from `load`.
    params: parameters that are trained, in the training layout.
    frozen: the others, or None.
    report: (steps done, metrics) -> None, for every step.
    name: of the folder in the workdir.
    keep: whether the folder stays, with its checkpoints, once the phase is
      done. A phase that was done is not done again then.

  Returns:
    The parameters of the lowest held-out loss; without held-out rows or without
    `keep`, the last ones.

  Raises:
    ValueError: a checkpoint of the phase has another config.
    FloatingPointError: the loss is no longer finite.
    Stopped: a process was asked to stop.
  """
  learner, channel = programs_lib.sft_learner(
      parts.programs, data.limits, data.steps), parts.processes.channel
  place = paths.place(parts.config.workdir) / name
  phase = SftSetting(
      parts, data, learner, parts.replicate(
          choices.supervised_params(parts.config)), frozen,
      place / 'checkpoints')
  with contextlib.closing(phase.saver()) as saver:
    state, first = learner.init({POLICY: params}), None
    host: dict[str, Any] = {'seconds': 0.0, 'best': None}
    if restored := saver.restore(
        {'learners': [state[POLICY]]}, differs=phase.conflicts):
      first, host = restored.step, restored.host
      state = {POLICY: restored.state['learners'][0]}
    state, best = _steps(phase, state, first, host, report, saver, keep)
  if not keep and channel.first and not (place / 'config.json').exists():
    paths.remove(place)  # The program `jaxrl_llm.sft` leaves a config.
  if not keep or best is None or best[0] == data.steps:
    return state[POLICY].params
  found = checkpoint.restore(
      phase.folder, {'learners': [{'params': learner.state[POLICY].params}]},
      best=True, partial=True, channel=channel)
  if found is None or found.step != best[0]:
    logging.warning(
        'Step %d had the lowest held-out loss, but its checkpoint could not be '
        'written: the last weights are used.', best[0])
    return state[POLICY].params
  return found.state['learners'][0]['params']


def _steps(
    phase: SftSetting, state: Any, first: int | None, host: dict[str, Any],
    report: Report, saver: checkpoint.Checkpointer, keep: bool,
) -> tuple[Any, list[Any] | None]:
  """Takes the steps that are left.

  Args:
    phase: of the steps.
    state: before them.
    first: step of the checkpoint that it goes on from, or None.
    host: values that a checkpoint keeps beside the state: seconds so far; and
      step and value of the lowest held-out loss, or None.
    report: see `run`.
    saver: writer of checkpoints.
    keep: whether to write one with each held-out loss, and when it is due.

  Returns:
    The last state, and `host['best']`.
  """
  config, data, best = phase.parts.config, phase.data, host['best']
  channel, began = phase.parts.processes.channel, (
      time.monotonic() - host['seconds'])
  saved, waiting = first, {}

  def save(step, score=None):
    saver.save(step, {'learners': [state[POLICY]]}, {
        'seconds': time.monotonic() - began, 'best': best}, score=score)

  with phases.phase('SFT', data.steps, 'steps', done=first or 0) as progress:
    for step in range(first or 0, data.steps + 1):
      due, loss = schedules.due(
          step, config.sft.eval_every, data.steps), math.nan
      if data.heldout and (due or not step) and step != saved:
        due, loss = True, _heldout_loss(phase, state[POLICY].params)
        waiting |= {'heldout_loss': loss,
                    'perplexity': math.exp(min(loss, _LARGEST))}
        if loss < (best[1] if best else math.inf):
          best = [step, loss]
      if keep and step != saved and (due or step and schedules.due(
          step, config.checkpoint.every, data.steps)):
        # A phase that goes on has the rows up to it.
        waiting = _report(report, progress, step, waiting)
        save(step, None if math.isnan(loss) else -loss)
        saved = step
      channel.gather()
      if step == data.steps or channel.stopping:
        break
      batch = data.batch(data.rows(step))
      state, metrics = phase.learner.update(
          state, phase.parts.shard_rows(batch), phase.plan(batch), phase.loss,
          phase.frozen)
      # While the devices are at work on this one.
      _report(report, progress, step, waiting)
      waiting = metrics
    _report(report, progress, step, waiting)
    if step < data.steps:
      if step != saved:
        save(step)
      saver.check(step)
      raise Stopped(
          f'Stopped after step {step} of supervised fine-tuning, which is '
          'saved; the same command goes on.')
  return state, best


def _report(
    report: Report, progress: phases.Phase, step: int,
    metrics: dict[str, Any]) -> dict[str, Any]:
  """Reports a step once it is done; returns no metrics.

  Raises:
    FloatingPointError: too many steps in a row had no finite loss.
  """
  if not metrics:
    return {}
  found = jax.device_get({
      name: metrics[name] for name in _SHOWN if name in metrics})
  progress.count(step)
  if found.pop('skipped_in_row', 0) >= SKIPPED_LIMIT:
    raise FloatingPointError(
        f'{SKIPPED_LIMIT} updates in a row, the last in step {step} of '
        'SFT, had a loss or gradient that is not finite and were not applied: '
        'start again in another workdir with a lower sft.learning_rate.')
  report(step, {f'sft/{name}': float(value) for name, value in found.items()})
  return {}


def _heldout_loss(phase: SftSetting, params: Any) -> float:
  """Returns the mean loss of the held-out rows' tokens, in nats."""
  processes, sums = phase.parts.processes, np.zeros(2)
  for batch in phases.counted(phase.data.heldout_batches(), 'held-out loss'):
    scores = processes.fetch_rows(phase.learner.score(
        {POLICY: params}, phase.parts.shard_rows(batch), phase.plan(batch),
        phase.loss, phase.frozen))
    mask = batch.mask[processes.positions(len(batch.mask))]
    sums += scores.logprobs.sum(where=mask, dtype=np.float64), mask.sum()
  of_homes = processes.channel.gather(sums.tolist())
  total, count = (math.fsum(
      of_homes[lead][i] for lead in processes.homes.leads) for i in (0, 1))
  return -total / count
