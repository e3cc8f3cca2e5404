"""Assignment of requests to the shards of the sampler, on the host.

The requests are split into contiguous runs of (almost) equal count. The samples
of a group are adjacent, so their prompt is needed on only one or two shards, if
a group is not larger than a run.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_llm.types import Prompts, Requests


class QueuePlan(NamedTuple):
  """Arguments of `sharded_generate`, and the inverse of the assignment.

  Attributes:
    prompts: [shards * prompts_per_shard, ...], with filler rows of length 0.
    requests: [shards * requests_per_shard, ...]; `prompt` is a row among the
      shard's own prompts.
    count: [shards] int32, requests of each shard.
    order: [R], row in `requests` of each original request.
  """
  prompts: Prompts
  requests: Requests
  count: np.ndarray
  order: np.ndarray


def plan(
    prompts: Prompts,
    requests: Requests,
    *,
    shards: int,
    requests_per_shard: int,
    prompts_per_shard: int,
    shard: np.ndarray | None = None,
) -> QueuePlan:
  """Assigns requests to shards of fixed capacity.

  Args:
    prompts: [P, ...] NumPy arrays.
    requests: [R, ...] NumPy arrays, all of them served; the samples of one
      prompt should be adjacent.
    shards: number of data shards of the mesh.
    requests_per_shard: capacity of each shard in requests.
    prompts_per_shard: capacity of each shard in distinct prompts.
    shard: [R] which shard serves each request; None for `shard_of`, whose
      shards' counts differ by at most one.

  Returns:
    The plan.

  Raises:
    ValueError: the requests or their distinct prompts do not fit, or a request
      names a prompt that does not exist or is empty, or has no token to draw.
  """
  total = len(requests.prompt)
  _check(prompts, requests, shards, requests_per_shard)
  # By count, not by length: how long responses become is not known.
  if shard is None:
    shard = shard_of(total, shards)
  runs = [np.flatnonzero(shard == number) for number in range(shards)]
  # Distinct prompts of each run, in the order of their first request.
  distinct = [
      list(dict.fromkeys(requests.prompt[run].tolist())) for run in runs]

  def gather(source, rows_of_shard, capacity):
    """Returns [shards * capacity, ...]: each shard's rows, then zeros."""
    # Full capacity whatever the call holds: one program serves them all.
    out = np.zeros((shards, capacity, *source.shape[1:]), source.dtype)
    for shard, rows in enumerate(rows_of_shard):
      out[shard, :len(rows)] = source[rows]
    return out.reshape(-1, *source.shape[1:])

  local, order = np.zeros((2, total), np.int32)
  for number, (rows, run) in enumerate(zip(distinct, runs)):
    if len(rows) > prompts_per_shard:
      raise ValueError(
          f'shard {number} serves {len(rows)} distinct prompts, more than '
          f'prompts_per_shard={prompts_per_shard}: raise it, or make the '
          'samples of each prompt adjacent.')
    local[run] = [rows.index(p) for p in requests.prompt[run]]
    order[run] = number * requests_per_shard + np.arange(len(run))
  requests = requests.replace(prompt=local)
  return QueuePlan(
      prompts=jax.tree.map(
          lambda x: gather(x, distinct, prompts_per_shard), prompts),
      requests=jax.tree.map(
          lambda x: gather(x, runs, requests_per_shard), requests),
      count=np.array([len(run) for run in runs], np.int32),
      order=order)


def _check(
    prompts: Prompts, requests: Requests, shards: int,
    requests_per_shard: int) -> None:
  """Raises ValueError for requests that no plan can serve."""
  total = len(requests.prompt)
  if total > shards * requests_per_shard:
    raise ValueError(
        f'{total} requests exceed {shards} shards x requests_per_shard='
        f'{requests_per_shard}: raise requests_per_shard to at least '
        f'{-(-total // shards)}.')
  missing = (requests.prompt < 0) | (requests.prompt >= len(prompts.length))
  missing |= prompts.length[np.where(missing, 0, requests.prompt)] < 1
  if missing.any():
    i = int(missing.argmax())
    raise ValueError(
        f'request {i} names prompt {int(requests.prompt[i])}, which is not '
        f'among the {len(prompts.length)} prompts or is empty: name the row '
        'of a prompt with at least one token.')
  if requests.done is not None and (requests.done >= requests.budget).any():
    i = int((requests.done >= requests.budget).argmax())
    raise ValueError(
        f'request {i} has done={int(requests.done[i])} response tokens and '
        f'budget={int(requests.budget[i])}: leave out a response that is full.')


def shard_of(requests: int, shards: int) -> np.ndarray:
  """Returns [R] the shard that serves each request."""
  runs = np.array_split(np.arange(requests), shards)
  return np.repeat(np.arange(shards, dtype=np.int32), [*map(len, runs)])


def undo(rollouts: Any, plan: QueuePlan, rows: np.ndarray) -> Any:
  """Returns rollouts (or other host rows) in the order of the requests.

  Args:
    rollouts: tree of [M, ...]: some rows of the result of `sharded_generate`.
    plan: of the call.
    rows: [M] which rows these are, each once.

  Returns:
    Tree of [R, ...]; zeros for requests whose rows are not among them.
  """
  _, at, place = np.intersect1d(
      plan.order, rows, assume_unique=True, return_indices=True)

  def in_order(x):
    x = np.asarray(x)
    out = np.zeros((len(plan.order), *x.shape[1:]), x.dtype)
    out[at] = x[place]
    return out

  return jax.tree.map(in_order, rollouts)
