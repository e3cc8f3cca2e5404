"""The learner with every row padded to its full length, and all logits at once.

Lists, bins, microbatches, chunks of the vocabulary: none of them is here. What
follows the statistics of the tokens, the loss and its gradient, is the
learner's own.
"""

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.learner import forward, packing
from jaxrl_llm.models import transformer
from jaxrl_llm.ops.token_stats import StudentStats, TokenStats
from tests.helpers import learners


def stats(
    params, frozen, batch, at, numbers, setting, *, entropy=True) -> TokenStats:
  """Computes what `forward.stats` does."""
  del at, entropy
  temperature, lam, _ = numbers
  cfg = setting.cfg
  columns = batch.prompt_length[:, None] + jnp.arange(cfg.max_response)
  columns = jnp.minimum(columns, batch.tokens.shape[1] - 1)

  def log_probs(name):
    if name not in params:
      return None
    net = setting.net(name)
    all_params = net.compose(params[name], frozen)
    hidden, _ = transformer.forward(all_params, batch.tokens, cfg=net.model)
    logits = transformer.logits(all_params, hidden, net.model) / temperature
    return jax.nn.log_softmax(jnp.take_along_axis(
        logits, columns[..., None] - 1, axis=1))

  def at_ids(logp, ids):
    return jnp.take_along_axis(logp, ids, axis=-1)

  targets = jnp.take_along_axis(batch.tokens, columns, axis=1)[..., None]
  p, q = log_probs('policy'), log_probs('actor')
  found = TokenStats(
      at_ids(p, targets)[..., 0], -jnp.sum(jnp.exp(p) * p, axis=-1))
  if batch.top_ids is not None:
    found = found._replace(
        id_logprobs=at_ids(p, jnp.swapaxes(batch.top_ids, 1, 2)))
  if q is not None:
    # As many as any of the two uses.
    count = max(cfg.actor.distill_top_k, cfg.rejection.top_k if (
        cfg.rejection and batch.top_ids is not None) else 0)
    top, ids = jax.lax.top_k(p, count)
    fixed = jax.lax.stop_gradient(p)
    found = found._replace(
        top_ids=ids, top_logprobs=top, student=StudentStats(
            at_ids(q, targets)[..., 0],
            jnp.sum(jnp.exp(fixed) * (fixed - q), axis=-1), at_ids(q, ids)))
  if forward.BEHAVIOUR in params:
    q = log_probs(forward.BEHAVIOUR)
  if lam is not None and q is not None:
    found = found._replace(overlap=jax.lax.stop_gradient(jnp.sum(
        jnp.minimum(jnp.exp(q), jnp.exp(p) / lam), axis=-1)))
  return found


def plan(rows: int) -> packing.Plan:
  """Returns the plan of one microbatch with all rows in their order."""
  sizes = packing.Sizes(columns=1, places=rows, single=True)
  zeros = np.zeros((1, 3 * rows), np.int32)
  order = zeros + rows
  order[0, :rows] = np.arange(rows)
  one = np.zeros((1, 1), np.int32)
  return packing.Plan(
      order, zeros, zeros, zeros > 0, one, one + rows,
      np.zeros((1, 1, 0), np.int32), np.int32(1), {}, sizes)


class Learner:
  """The programs of `learner.make`, slow and plain."""

  def __init__(self, *args: Any, **kwargs: Any):
    """Takes the arguments of `learner.make`."""
    self._made = learners.make(*args, **kwargs)
    self.init = self._made.init

  def score(self, params, batch, *rest):
    return self._call(self._made.score, params, batch, *rest)

  def update(self, state, batch, *rest):
    return self._call(self._made.update, state, batch, *rest)

  def _call(self, program, tree, batch, *rest):
    with mock.patch.object(forward, 'stats', stats):
      return program(tree, batch, plan(len(batch.mask)), *rest)
