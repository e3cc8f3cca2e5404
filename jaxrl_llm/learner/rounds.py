"""One round: a batch is scored, cut into mini-batches and trained on."""

import pathlib
from typing import Any, Callable, Mapping

import jax
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm.learner import batches
from jaxrl_llm.learner.loss import LossParams
from jaxrl_llm.learner.update import Learner, TrainState
from jaxrl_llm.types import LearnerBatch

SKIPPED_LIMIT = 3  # Non-finite updates in a row that stop the run.

Shard = Callable[[LearnerBatch], LearnerBatch]


def with_scores(
    learner: Learner, batch: LearnerBatch, models: Mapping[str, Any],
    loss: LossParams, frozen: Any, *, shard_rows: Shard) -> LearnerBatch:
  """Adds log-probs of other policies to a batch.

  Args:
    learner: its `score` computes them.
    batch: B rows of NumPy arrays.
    models: field of LearnerBatch to the parameters of its policy.
    loss: its temperature is the policies'.
    frozen: parameters that are not trained, or None.
    shard_rows: puts a batch on the devices.

  Returns:
    The batch with a NumPy array [B, T] in each field named.
  """
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
    state: before; it is donated.
    batch: rows of NumPy arrays.
    loss: numbers of the loss.
    frozen: parameters that are not trained, or None.
    config: of the run.
    step: steps of the run done before this one; it seeds the shuffle.
    shard_rows: puts a batch on the devices.

  Returns:
    The state after, and the metrics of each optimiser step.

  Raises:
    FloatingPointError: SKIPPED_LIMIT updates in a row had a loss or gradient
      that is not finite; the last batch is saved.
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
  """Saves the batch that made the last update fail, and raises."""
  path = pathlib.Path(config.workdir, 'not_finite.npz')
  arrays = {k: v for k, v in vars(batch).items() if v is not None}
  np.savez(path, **arrays)
  raise FloatingPointError(
      f'{SKIPPED_LIMIT} updates in a row, the last in step {step}, had a loss '
      f'or gradient that is not finite; the parameters are those before them. '
      f'The last batch is in {path}: look for what is wrong in it, or start in '
      'another workdir with a lower optimizer.learning_rate.')
