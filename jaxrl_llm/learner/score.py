"""Scores of response tokens under policies, for later updates on them.

`cfg` is a `update.LearnerConfig`.
"""

from typing import NamedTuple, Optional

import jax
import jax.numpy as jnp

from jaxrl_llm.learner import forward, passes
from jaxrl_llm.types import Array


class Scores(NamedTuple):
  """Scores of the response tokens under the policy.

  Attributes:
    logprobs: [B, T] float32, 0 past each response.
    z: [B, T] float32 or None, the normaliser of the rejection towards this
      policy, see `normalizers`.
    actor_logprobs: [B, T] float32 or None, under the actor, if it is another
      model; 0 past each response.
  """
  logprobs: Array
  z: Optional[Array] = None
  actor_logprobs: Optional[Array] = None


def score(params, batch, loss, frozen=None, *, cfg, mesh, nets) -> Scores:
  """Computes `Learner.score`."""
  forward.check(batch, cfg)
  params = forward.as_tuple(params)
  frozen = (frozen, None)[:len(params)]
  lam = None
  if cfg.rejection and cfg.rejection.scores_z:
    lam = loss.rejection['lam']

  def one(trees, micro, numbers, length, shared):
    temperature, lam = numbers
    params, frozen, _ = trees
    found = forward.stats(
        params, frozen, micro, temperature, length, cfg=cfg, nets=nets,
        entropy=False, lam=lam, shared=shared)
    wide = lambda x: jnp.pad(x, ((0, 0), (0, cfg.max_response - x.shape[1])))
    z = None
    if lam is not None:
      exact, topk = forward.normalizers(micro, found, lam, cfg.rejection)
      z = topk if exact is None else exact
    return jax.tree.map(wide, Scores(
        found.logprobs, z, found.student and found.student.logprobs))

  def init(shape, lead):
    return jax.tree.map(
        lambda x: jnp.zeros((*lead, cfg.max_response), x.dtype), shape)

  def add(place, out, new):
    return jax.tree.map(
        lambda out, x: out.at[place].set(x, mode='drop'), out, new)

  work = passes.arrange(batch, batch, batch.response_length > 0, cfg, mesh)
  out, _, _ = passes.run(
      work, (params, frozen, None), (loss.temperature, lam), cfg=cfg, mesh=mesh,
      nets=nets, one=one, add=add, init=init, done=lambda x: x, out='rows')
  real = forward.real(batch)
  return jax.tree.map(
      lambda x: jnp.where(real, work.in_place(x, len(real)), 0.0), out)
