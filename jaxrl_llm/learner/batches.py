"""Rollouts to rows that the learner trains on. All NumPy."""

from typing import Iterator, Sequence

import numpy as np

from jaxrl_llm.types import LearnerBatch, Prompts, Requests, Rollouts


def learner_batch(
    prompts: Prompts,
    requests: Requests,
    rollouts: Rollouts,
    advantages: np.ndarray,
    *,
    keep: np.ndarray,
    trained: np.ndarray,
) -> LearnerBatch:
  """Puts each response right behind its prompt.

  Args:
    prompts: P of them, [P, L].
    requests: R of them, aligned with rollouts.
    rollouts: [R, T].
    advantages: [R].
    keep: [R] bool; a row that is False becomes filler: it costs no time and no
      denominator counts it.
    trained: [R] bool, rows whose tokens count in the loss.

  Returns:
    LearnerBatch of R rows, S = L + T columns, without old log-probs.
  """
  row = requests.prompt
  length = np.where(keep, rollouts.length, 0).astype(np.int32)
  t = np.arange(rollouts.tokens.shape[1])
  real = t < length[:, None]
  response = np.where(real, rollouts.tokens, 0)
  tokens = np.pad(prompts.tokens[row], ((0, 0), (0, len(t))))
  columns = prompts.length[row][:, None] + t
  np.put_along_axis(tokens, columns, response, axis=1)
  return LearnerBatch(
      tokens=tokens,
      prompt_length=prompts.length[row],
      response_length=length,
      mask=trained[:, None] & real,
      behaviour_logprobs=np.where(real, rollouts.logprobs, 0.0).astype(
          np.float32),
      advantages=np.where(keep, advantages, 0.0).astype(np.float32))


def minibatches(
    batch: LearnerBatch, *, epochs: int, updates: int, seed: Sequence[int],
) -> Iterator[LearnerBatch]:
  """Splits a batch into the rows of each optimiser step.

  Args:
    batch: B rows of NumPy arrays.
    epochs: passes over the rows.
    updates: optimiser steps per pass; divides B.
    seed: integers that fix the shuffles; each epoch has its own.

  Yields:
    epochs * updates batches of B / updates rows. With one update per pass the
    order is the batch's own.
  """
  rows = len(batch.prompt_length)
  fields = {
      name: value for name, value in vars(batch).items() if value is not None}
  for epoch in range(epochs):
    order = np.arange(rows)
    if updates > 1:
      order = np.random.default_rng([*seed, epoch]).permutation(rows)
    for part in np.split(order, updates):
      yield LearnerBatch(**{name: v[part] for name, v in fields.items()})
