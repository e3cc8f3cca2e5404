"""Conversion of rollouts to batches for the learner, in NumPy."""

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
    behaviour: str = 'tempered',
) -> LearnerBatch:
  """Makes a LearnerBatch, with each response directly after its prompt.

  Args:
    prompts: P prompts, [P, L].
    requests: R requests, aligned with the rollouts.
    rollouts: [R, T].
    advantages: [R].
    keep: [R] bool. Rows with False become filler: they cost no time and count
      in no denominator.
    trained: [R] bool, whether the row's tokens count in the loss.
    behaviour: 'tempered' or 'sampled', see `loss.behaviour`.

  Returns:
    LearnerBatch of R rows and S = L + T columns, without old log-probs.
  """
  row = requests.prompt
  length = np.where(keep, rollouts.length, 0).astype(np.int32)
  t = np.arange(rollouts.tokens.shape[1])
  real = t < length[:, None]
  response = np.where(real, rollouts.tokens, 0)
  tokens = np.pad(prompts.tokens[row], ((0, 0), (0, len(t))))
  logprobs = rollouts.logprobs
  if behaviour == 'tempered' and rollouts.tempered_logprobs is not None:
    logprobs = rollouts.tempered_logprobs
  columns = prompts.length[row][:, None] + t
  np.put_along_axis(tokens, columns, response, axis=1)
  return LearnerBatch(
      tokens=tokens,
      prompt_length=prompts.length[row],
      response_length=length,
      mask=trained[:, None] & real,
      behaviour_logprobs=np.where(real, logprobs, 0.0).astype(np.float32),
      advantages=np.where(keep, advantages, 0.0).astype(np.float32))


def minibatches(
    batch: LearnerBatch, *, epochs: int, updates: int, seed: Sequence[int],
) -> Iterator[LearnerBatch]:
  """Splits a batch into mini-batches, one per optimiser step.

  Args:
    batch: B rows of NumPy arrays.
    epochs: number of passes over the rows.
    updates: optimiser steps per pass; divides B.
    seed: integers that seed the shuffles; each epoch has its own shuffle.

  Yields:
    epochs * updates batches of B / updates rows. With one update per pass the
    rows are not shuffled.
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
