"""Scores of response tokens under policies, for later updates on them."""

from typing import NamedTuple, Optional

import jax
import jax.numpy as jnp

from jaxrl_llm.learner import calibration, forward, packing
from jaxrl_llm.types import Array


class Scores(NamedTuple):
  """Scores of the response tokens under the policy.

  Attributes:
    logprobs: [B, T] float32, 0 past each response.
    z: [B, T] float32 or None, the normaliser of the rejection towards this
      policy, from `calibration.normalizers`.
    actor_logprobs: [B, T] float32 or None, under the actor, if it is another
      model; 0 past each response.
  """
  logprobs: Array
  z: Optional[Array] = None
  actor_logprobs: Optional[Array] = None


def score(params, batch, plan, loss, frozen=None, *, setting) -> Scores:
  """Computes `LearnerPrograms.score`; `setting` is a forward.Setting."""
  rejection, mesh = setting.cfg.rejection, setting.mesh
  forward.check(batch, setting.cfg)
  lam = None
  if rejection and rejection.scores_z:
    lam = loss.rejection['lam']

  def of_microbatch(rows, at, given):
    batch, = rows
    params, frozen, temperature, lam = given
    now = forward.stats(
        params, frozen, batch, at, forward.Numbers(temperature, lam), setting,
        entropy=False)
    z = None
    if lam is not None:
      exact, topk = calibration.normalizers(batch, now, lam, rejection)
      z = topk if exact is None else exact
    return ((), ()), Scores(
        now.logprobs, z, now.student and now.student.logprobs)

  _, scores = packing.fold(
      of_microbatch, plan, packing.arrange((batch,), plan, mesh),
      (params, frozen, loss.temperature, lam), mesh)
  real = forward.real(batch)
  # What a list holds behind a response are tokens of other rows.
  return jax.tree.map(
      lambda x: jnp.where(real, x, 0.0),
      packing.in_place(scores, plan, len(real)))
