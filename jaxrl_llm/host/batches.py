"""Conversion of rollouts to batches for the learner, in NumPy."""

from typing import Iterator, Sequence

from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm.types import LearnerBatch, RolloutTokens


def minibatch_rows(config: ConfigDict) -> int:
  """Returns the rows of an optimiser step."""
  return (config.prompts_per_step * config.samples_per_prompt
          // config.learner.updates)


def learner_batch(
    tokens: RolloutTokens, rows: np.ndarray, advantages: np.ndarray,
    trained: np.ndarray, *, scored: bool = True,
    identity: np.ndarray | None = None,
    temperature: np.ndarray | None = None) -> LearnerBatch:
  """Makes a LearnerBatch, with each response directly after its prompt.

  Args:
    tokens: C rollouts.
    rows: [B] which of them; -1 makes a filler row, which costs no time and
      counts in no denominator.
    advantages: [B]; those of filler rows are ignored.
    trained: [B] bool, whether the row's tokens count in the loss.
    scored: whether to include the results of `LearnerPrograms.score`, if there
      are any.
    identity: [B, 3] seed of the run, group and sample of each row, or None.
    temperature: [C] of the rollouts, or None.

  Returns:
    LearnerBatch of B rows and S = L + T columns.
  """
  kept = rows >= 0
  width = tokens.response.shape[1]

  def of(x, filler=0):
    if not len(x):  # no rollout at all
      return np.full((len(rows), *x.shape[1:]), filler, x.dtype)
    where = kept.reshape(-1, *[1] * (x.ndim - 1))
    return np.where(where, x[rows], np.asarray(filler, x.dtype))

  # A token of a response is predicted by the column before it: filler too has
  # a prompt.
  length, prompt_length = of(tokens.length), of(tokens.prompt_length, 1)
  t = np.arange(width)
  real = t < length[:, None]
  wrote = real if tokens.generated is None else real & of(tokens.generated)
  sequence = np.pad(of(tokens.prompt), ((0, 0), (0, width)))
  np.put_along_axis(
      sequence, prompt_length[:, None] + t, of(tokens.response), axis=1)

  def optional(x, wanted=True):
    return of(x) if wanted and x is not None else None

  return LearnerBatch(
      tokens=sequence, prompt_length=prompt_length, response_length=length,
      mask=trained[:, None] & wrote,
      behaviour_logprobs=of(tokens.behaviour_logprobs),
      advantages=np.where(kept, advantages, 0.0).astype(np.float32),
      old_logprobs=optional(tokens.old_logprobs, scored),
      anchor_logprobs=optional(tokens.anchor_logprobs, scored),
      top_ids=optional(tokens.top_ids),
      top_logprobs=optional(tokens.top_logprobs),
      z=optional(tokens.z, scored), identity=identity,
      actor_logprobs=optional(tokens.actor_logprobs, scored),
      experts=optional(tokens.experts), temperature=optional(temperature))


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
