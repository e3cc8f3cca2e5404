"""Calls of a learner's programs with plans of whole batches."""

from typing import Any

import jax
import numpy as np

from jaxrl_llm.learner.packing import Plan
from jaxrl_llm.types import LearnerBatch


def plan(
    learner: Any, batch: LearnerBatch, prompt: Any = None,
    needed: Any = True) -> Plan:
  """Plans the microbatches of the rows that are needed.

  Args:
    learner: of `learner.make`.
    batch: B rows.
    prompt: [B], equal for rows with the same prompt; None for different ones.
    needed: [B] bool.
  """
  length, prompts = jax.device_get(
      (batch.response_length, batch.prompt_length))
  if prompt is None:
    prompt = np.arange(len(length))
  return learner.plan(
      np.asarray(prompt), prompts, np.where(needed, length, 0))


def update(
    learner: Any, state: Any, batch: LearnerBatch, *rest: Any,
    prompt: Any = None) -> tuple[Any, dict[str, Any]]:
  """Calls `learner.update` with a plan of the rows with a token in the loss."""
  needed = np.any(jax.device_get(batch.mask), 1)
  return learner.update(
      state, batch, plan(learner, batch, prompt, needed), *rest)


def score(
    learner: Any, params: Any, batch: LearnerBatch, *rest: Any,
    prompt: Any = None) -> Any:
  """Calls `learner.score` with a plan of all rows."""
  return learner.score(params, batch, plan(learner, batch, prompt), *rest)


def unpadded(metrics):
  """Returns metrics without those of padding, which depends on the lists."""
  return {name: value for name, value in metrics.items()
          if not name.rpartition('/')[2].startswith('real_')}
