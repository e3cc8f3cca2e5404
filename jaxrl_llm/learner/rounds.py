"""One round: scoring of a batch, and updates on its mini-batches."""

import pathlib
from typing import Any, Callable

import jax
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm.learner import batches
from jaxrl_llm.learner.loss import LossParams
from jaxrl_llm.learner.update import Learner, TrainState
from jaxrl_llm.types import LearnerBatch

SKIPPED_LIMIT = 3  # Consecutive non-finite updates that stop the run.

Shard = Callable[[LearnerBatch], LearnerBatch]


def with_scores(
    learner: Learner, batch: LearnerBatch, old: Any, anchor: Any,
    loss: LossParams, frozen: Any, *, shard_rows: Shard) -> LearnerBatch:
  """Adds the log-probs of other policies to a batch.

  Args:
    learner: its `score` computes them.
    batch: B rows of NumPy arrays.
    old: parameters of the old policy; None leaves `old_logprobs` out.
    anchor: parameters of the KL penalty's frozen model; None leaves
      `anchor_logprobs` out.
    loss: its temperature is used for all policies.
    frozen: parameters that are not trained, or None.
    shard_rows: (batch) -> batch on the devices, with its rows sharded.

  Returns:
    The batch with NumPy arrays [B, T] in these fields.
  """
  models = {'old_logprobs': old, 'anchor_logprobs': anchor}
  models = {name: params for name, params in models.items()
            if params is not None}
  if not models:
    return batch
  rows = shard_rows(batch)
  return batch.replace(**jax.device_get({
      name: learner.score(params, rows, loss.temperature, frozen)
      for name, params in models.items()}))


def update(
    learner: Learner, state: TrainState, batch: LearnerBatch, loss: LossParams,
    frozen: Any, *, config: ConfigDict, step: int, shard_rows: Shard,
) -> tuple[TrainState, list[dict[str, np.ndarray]]]:
  """Takes the optimiser steps of a batch.

  Args:
    learner: its `update` takes one step.
    state: the state before; it is donated.
    batch: B rows of NumPy arrays.
    loss: hyperparameters of the loss.
    frozen: parameters that are not trained, or None.
    config: config of the run.
    step: number of steps of the run before this one; it seeds the shuffle.
    shard_rows: (batch) -> batch on the devices, with its rows sharded.

  Returns:
    The state after, and the metrics of each optimiser step.

  Raises:
    FloatingPointError: SKIPPED_LIMIT consecutive updates had a loss or gradient
      that is not finite; the last mini-batch is saved.
  """
  metrics = []
  for part in batches.minibatches(
      batch, epochs=config.learner.epochs, updates=config.learner.updates,
      seed=(config.seed, step)):
    state, result = learner.update(state, shard_rows(part), loss, frozen)
    metrics.append(jax.device_get(result))
    if metrics[-1]['skipped_in_row'] >= SKIPPED_LIMIT:
      _raise_not_finite(config, step + 1, part)
  return state, metrics


def _raise_not_finite(
    config: ConfigDict, step: int, batch: LearnerBatch) -> None:
  """Saves the mini-batch of the last failed update, and raises."""
  path = pathlib.Path(config.workdir, 'not_finite.npz')
  arrays = {k: v for k, v in vars(batch).items() if v is not None}
  np.savez(path, **arrays)
  raise FloatingPointError(
      f'{SKIPPED_LIMIT} updates in a row, the last in step {step}, had a loss '
      'or gradient that is not finite and were not applied: check the last '
      f'mini-batch, saved in {path}, or start again in another workdir with a '
      'lower optimizer.learning_rate.')
