"""Host-side arrays between the stages: problems to prompts, rollouts to rows.

All NumPy. A group's samples are neighbours: request p * N + n is sample n of
prompt p, and rewards reshape to [P, N].
"""

from typing import Iterator, Sequence

import numpy as np

from jaxrl_llm.types import LearnerBatch, Prompts, Requests, Rollouts


def encode(problems: Sequence, tokenizer, max_prompt: int) -> Prompts:
  """Tokenises problems into right-padded rows.

  Args:
    problems: tasks.Problem, P of them.
    tokenizer: see `tokenizer.py`.
    max_prompt: L, columns of the result.

  Returns:
    Prompts of NumPy arrays.

  Raises:
    ValueError: a prompt has no token or more than `max_prompt`.
  """
  tokens = np.zeros((len(problems), max_prompt), np.int32)
  length = np.zeros(len(problems), np.int32)
  for row, problem in enumerate(problems):
    ids = tokenizer.encode(problem.prompt)
    if not 1 <= len(ids) <= max_prompt:
      raise ValueError(
          f'The prompt of problem {problem.id} has {len(ids)} tokens, outside '
          f'1 to max_prompt={max_prompt}: raise config.max_prompt or leave the '
          'problem out.')
    tokens[row, :len(ids)] = ids
    length[row] = len(ids)
  ids = np.array([problem.id for problem in problems], np.int32)
  return Prompts(tokens=tokens, length=length, problem_id=ids)


def grouped_requests(
    problem_id: np.ndarray, samples: int, budget: int) -> Requests:
  """`samples` requests for each of P prompts, groups together.

  Args:
    problem_id: [P]. A problem that comes again gets sample numbers that go
      on from its last ones: with the same, it would get the same noise.
    samples: N.
    budget: response tokens allowed to each.

  Returns:
    P * N requests, as NumPy arrays.
  """
  rows = np.arange(len(problem_id), dtype=np.int32)
  before = [int((problem_id[:row] == problem_id[row]).sum()) for row in rows]
  sample = np.add.outer(samples * np.array(before), np.arange(samples))
  return Requests(
      prompt=np.repeat(rows, samples),
      sample=sample.reshape(-1).astype(np.int32),
      budget=np.full(sample.size, budget, np.int32))


def texts(rollouts: Rollouts, tokenizer) -> list[str]:
  """Decodes each response, without the stop token that ended it."""
  ends = rollouts.length - ~rollouts.truncated
  return [
      tokenizer.decode(row[:end].tolist())
      for row, end in zip(rollouts.tokens, ends)]


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
