"""Conversion of rollouts to batches for the learner, in NumPy."""

from typing import Any, Iterator, Sequence

import numpy as np

from jaxrl_llm.types import LearnerBatch, RolloutTokens

# Columns of which others of a batch are made.
_MERGED = 'prompt', 'prompt_length', 'response', 'length', 'generated'


def learner_batch(
    tokens: RolloutTokens, rows: np.ndarray, advantages: np.ndarray,
    trained: np.ndarray, **further: Any) -> LearnerBatch:
  """Makes a LearnerBatch, with each response directly after its prompt.

  Args:
    tokens: C rollouts.
    rows: [B] which of them; -1 makes a filler row, which costs no time and
      counts in no denominator.
    advantages: [B]; those of filler rows are ignored.
    trained: [B] bool, whether the row's tokens count in the loss.
    **further: columns [B, ...] of the batch, beside those of `tokens`.

  Returns:
    LearnerBatch of B rows and S = L + T columns.
  """
  of = tokens.at(rows)
  # A token of a response is predicted by the column before it: filler too has
  # a prompt.
  prompt_length = np.maximum(of.prompt_length, 1)
  t = np.arange(of.response.shape[1])
  wrote = t < of.length[:, None]
  if of.generated is not None:
    wrote &= of.generated
  sequence = np.pad(of.prompt, ((0, 0), (0, len(t))))
  np.put_along_axis(
      sequence, prompt_length[:, None] + t, of.response, axis=1)
  carried = {name: x for name, x in of.columns.items() if name not in _MERGED}
  return LearnerBatch(**carried | further, **dict(
      tokens=sequence, prompt_length=prompt_length, response_length=of.length,
      mask=trained[:, None] & wrote,
      advantages=np.where(rows >= 0, advantages, 0.0).astype(np.float32)))


def minibatches(
    rows: np.ndarray, *, size: int, epochs: int, seed: Sequence[int],
) -> Iterator[np.ndarray]:
  """Splits rows into mini-batches, one per optimiser step.

  Args:
    rows: [K] numbers; -1 for filler, which is shuffled like a row.
    size: rows of a mini-batch.
    epochs: number of passes over the rows.
    seed: integers that seed the shuffles; each epoch has its own shuffle.

  Yields:
    epochs * ceil(K / size) arrays [size]. What does not fill the last
    mini-batch of a pass is filler. With one mini-batch per pass the rows are
    not shuffled.
  """
  count = -(-len(rows) // size)
  for epoch in range(epochs):
    order = rows
    if count > 1:
      order = np.random.default_rng([*seed, epoch]).permutation(rows)
    order = np.pad(
        order, (0, count * size - len(rows)), constant_values=-1)
    yield from np.split(order, count)
