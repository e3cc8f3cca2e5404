"""Normaliser and calibration of the rejection, where they need the model."""

from typing import Any, Callable, Optional

import jax
import jax.numpy as jnp

from jaxrl_llm.learner import forward
from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.ops import obrs
from jaxrl_llm.ops.token_stats import TokenStats
from jaxrl_llm.types import Array, LearnerBatch


def normalizers(
    batch: LearnerBatch, now: TokenStats, lam: Array, cfg,
) -> tuple[Optional[Array], Optional[Array]]:
  """Returns the exact and the top-k normaliser of the rejection.

  The latter is over the sampler's likeliest tokens. With an actor that is
  another model it is also over the policy's likeliest ones, for which the
  actor's forward pass gives the log-probs, see `obrs.normalizer_topk`. Without
  one, the sampler has recorded no log-prob of its other tokens, and they count
  as 0.

  Args:
    batch: B rows. Normalisers in it, from `score`, are used.
    now: of these rows.
    lam: threshold.
    cfg: `LearnerConfig.rejection`.

  Returns:
    [B, T] each, without gradient, or None.
  """
  if batch.z is not None:
    return (batch.z, None) if cfg.z == 'exact' else (None, batch.z)
  if batch.top_ids is None:
    return now.overlap, None
  now = jax.lax.stop_gradient(now)
  logq = jnp.swapaxes(batch.top_logprobs, 1, 2)
  if now.student is None:
    return now.overlap, obrs.normalizer(now.id_logprobs, logq, lam=lam)
  # A distillation over more tokens than the rejection's has one common top-k.
  k = cfg.top_k
  return now.overlap, obrs.normalizer_topk(
      jnp.swapaxes(batch.top_ids, 1, 2), logq,
      now.top_ids[..., :k], now.top_logprobs[..., :k], lam=lam,
      logp_t_at_b=now.id_logprobs,
      logp_b_at_t=now.student.top_logprobs[..., :k])


def calibration(
    previous: Optional[rejection_lib.Calibration], params: dict[str, Any],
    frozen: Any, rows: tuple[LearnerBatch, Any, Any],
    fold: Callable[..., Any], loss: Any, setting: forward.Setting,
) -> tuple[Optional[rejection_lib.Calibration], bool]:
  """Computes the calibration that a batch uses.

  Args:
    previous: that of the update before.
    params, frozen: of the pass, see `forward.stats`.
    rows: in the order of the batch: LearnerBatch, weights and noise.
    fold: (of_microbatch, given=) -> `packing.fold` over the batch.
    loss: LossParams.
    setting: of the program.

  Returns:
    The calibration, None without rejection, and whether it was computed from
    this batch; else it is that of the update before.
  """
  cfg = setting.cfg.rejection
  if not cfg:
    return None, True

  def counts(new, batch, noise, **z):
    old = new if batch.old_logprobs is None else batch.old_logprobs
    return rejection_lib.counts(cfg, rejection_lib.tokens(
        cfg, obrs.Logprobs(new, old, batch.behaviour_logprobs), batch.mask,
        loss.rejection['lam'], noise=noise, **z), batch.mask)

  def of_microbatch(rows, at, given):
    params, frozen, loss = given
    batch, _, noise = rows
    lam = loss.rejection['lam']
    now = forward.stats(
        params, frozen, batch, at, forward.Numbers(loss.temperature, lam),
        setting, entropy=False)
    z, z_topk = normalizers(batch, now, lam, cfg)
    return (counts(now.logprobs, batch, noise, z=z, z_topk=z_topk), ()), ()

  if cfg.target == 'p_ref':
    # Both policies are known before the update: no pass of the model.
    batch, _, noise = rows
    z = 'z' if cfg.z == 'exact' else 'z_topk'
    sums = counts(batch.old_logprobs, batch, noise, **{z: batch.z})
  elif cfg.two_pass:
    (sums, _), _ = fold(of_microbatch, given=(params, frozen, loss))
  else:
    return previous, False
  return rejection_lib.calibrate(cfg, sums, previous, own=True), True
