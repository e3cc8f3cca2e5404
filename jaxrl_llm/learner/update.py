"""One update of the players: forward, statistics, loss, gradient, clip, step.

The weights of the tokens in the loss are computed for the whole batch, before
it is split into microbatches. These are only summed, so that their number does
not change the result.

Metrics:
  update/grad_norm [norm]: of the gradient, before it is clipped
  update/learning_rate [rate]: of the last update
  update/skipped [updates]: skipped so far in the run: a number was not finite
  update/skipped_in_row [updates]: skipped in a row, at the end
  update/actor_grad_norm [norm]: of the actor's gradient
  update/actor_learning_rate [rate]: the actor's
  update/lambda_distill [weight]: of KL(policy || actor) in the actor's loss
"""

import functools
from typing import Any, NamedTuple, Optional

from flax import struct
import jax
import jax.numpy as jnp
import optax

from jaxrl_llm.learner import actor as actor_lib
from jaxrl_llm.learner import forward, microbatches
from jaxrl_llm.learner import loss as loss_lib
from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.learner.forward import PassParams, Players
from jaxrl_llm.models import experts
from jaxrl_llm.ops import obrs, policy_losses
from jaxrl_llm.types import Array

# Sums over the tokens that stay sums; of all others the mean is reported.
_TOTALS = (
    'loss', 'policy_loss', 'tokens', 'actor_loss', 'actor_policy_loss',
    'actor_distill_loss')


@struct.dataclass
class TrainState:
  """Parameters, optimiser state and counters.

  Attributes:
    step: [] int32, optimiser steps taken. Skipped updates, and batches without
      a token to train on, do not count.
    params: float32 parameter tree.
    opt_state: state of the optimiser.
    skipped: [] int32, updates skipped because the loss or the gradient is not
      finite.
    skipped_in_row: [] int32, consecutive skipped updates up to now.
    calibration: of the rejection, or None.
    distill: [] lambda_distill, of an actor that is another model, or None.
  """
  step: Array
  params: Any
  opt_state: Any
  skipped: Array
  skipped_in_row: Array
  calibration: Optional[rejection_lib.Calibration] = None
  distill: Optional[Array] = None


class Numbers(NamedTuple):
  """Numbers of an update.

  Attributes:
    loss: LossParams.
    calibration: of the rejection, or None.
    distill: [] lambda_distill, or None.
  """
  loss: loss_lib.LossParams
  calibration: Optional[rejection_lib.Calibration]
  distill: Optional[Array]


def update(
    state, batch, plan, loss, frozen=None, behaviour_params=None, *, setting):
  """Computes `LearnerPrograms.update`.

  Args:
    state, batch, plan, loss, frozen, behaviour_params: those of
      `LearnerPrograms.update`.
    setting: forward.Setting.
  """
  forward.check(batch, setting.cfg)
  states, still = Players.of(state), None
  if states.actor and not setting.cfg.actor.learns:
    # The pass has the policy, and the parameters that wrote the rows if the
    # rejection needs them.
    states, still = Players(states.policy), states.actor
    if setting.cfg.rejection and setting.cfg.rejection.needs_actor:
      behaviour_params = still.params
  policy, actor = states
  weights = PassParams(states.map(lambda x: x.params), frozen, behaviour_params)
  # Skipped updates count too: a row that comes back gets other noise.
  rows = _rows(batch, loss, policy.step + policy.skipped, setting.cfg)
  fold = functools.partial(
      microbatches.fold, plan=plan, mesh=setting.mesh,
      rows=microbatches.arrange(rows, plan, setting.mesh))
  calibration, own = _calibration(
      policy.calibration, weights, rows, fold, loss, setting)
  gradient = jax.grad(functools.partial(_loss, setting=setting), has_aux=True)
  grads, metrics, maxima, facts = _gradient(
      gradient, weights, fold, Numbers(
          loss, calibration, actor and actor.distill), setting.specs)
  metrics, calibration = _means(metrics, calibration, own, setting)
  metrics.update(maxima, **plan.shares)

  norms = grads.map(optax.tree.norm)
  # One number that is not finite makes the sum so. All players skip together,
  # so that their steps stay those of the same batches.
  finite = jnp.isfinite(
      metrics['loss'] + norms.policy + (
          metrics['actor_loss'] + norms.actor if actor else 0.0))
  # A batch without trained tokens changes nothing: no momentum, no decay.
  taken = finite & (metrics['tokens'] > 0)
  # Where the rejection leaves no token, the policy has nothing to learn from.
  by_policy = taken & (metrics.get('obrs_empty', 0.0) == 0)
  new = states.map(
      functools.partial(_descend, dropped=1 - finite.astype(jnp.int32)), grads,
      setting.optimizers, Players(by_policy, taken))
  for name, before, norm, optimizer in zip(
      ('', 'actor_'), states, norms, setting.optimizers):
    if before is not None:
      metrics.update({
          f'{name}grad_norm': norm,
          f'{name}learning_rate': optimizer.schedule(before.step)})
  policy = new.policy.replace(calibration=calibration)
  metrics.update(
      skipped=policy.skipped, skipped_in_row=policy.skipped_in_row)
  new = new._replace(policy=policy)
  if actor:
    metrics.update(lambda_distill=actor.distill)
    distill = actor_lib.controlled(
        actor.distill, metrics['actor_kl'], loss.actor, setting.cfg.actor)
    new = new._replace(actor=new.actor.replace(
        distill=jnp.where(taken, distill, actor.distill)))
  metrics = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), metrics)
  if facts:
    metrics['rows'] = microbatches.in_place(facts, plan, len(batch.mask))
  return new._replace(actor=still or new.actor).like(state), metrics


def _rows(batch, loss, number, cfg):
  """Computes weights and noise of a batch; `number` counts the updates before.

  Returns:
    The LearnerBatch without tokens behind a response in its mask, the weights
    [B, T] of its tokens in the loss, and the noise [B, T] of the rejection's
    mask, or None.
  """
  # A token behind the response stands for whatever its list has there.
  batch = batch.replace(mask=batch.mask & forward.real(batch))
  weights = policy_losses.token_weights(
      batch.mask, cfg.aggregation, where=batch.response_length > 0,
      budget=loss.budget)
  noise = None
  if cfg.rejection and cfg.rejection.mask == 'sampled':
    noise = rejection_lib.noise(batch.identity, number, cfg.max_response)
  return batch, weights, noise


def _loss(params, weights, rows, at, numbers, *, setting):
  """Computes the weighted sums of the losses of a microbatch.

  Args:
    params: Players; the gradient is with respect to them.
    weights: with the parameters that have no gradient.
    rows: of the microbatch: LearnerBatch, weights and noise of its tokens.
    at: microbatches.MicrobatchTokens.
    numbers: of the update.
    setting: of the program.

  Returns:
    The sum; and the sums, maxima and facts of rows of `loss.weighted_sum`.
  """
  cfg = setting.cfg
  batch, of_tokens, noise = rows
  loss, calibration, distill = numbers
  lam = loss.rejection.get('lam')
  now = forward.stats(
      weights._replace(params=params), batch, at, loss.temperature, setting,
      lam=lam)
  rejection = None
  if cfg.rejection:
    rejection = rejection_lib.Context(
        cfg.rejection, calibration, noise,
        *forward.normalizers(batch, now, lam, cfg.rejection))
  total, (sums, maxima, facts) = loss_lib.weighted_sum(
      now.logprobs, now.entropy, batch, of_tokens, loss, cfg=cfg,
      rejection=rejection)
  if now.student is not None:
    # The gradient of each model is of its own loss alone.
    actor, more = actor_lib.weighted_sum(
        now, batch, of_tokens, distill, loss.actor, cfg.actor)
    total, sums = total + actor, {**sums, **more}
  if now.experts is not None:
    sums = {**sums, 'experts': now.experts}
  return total, (sums, maxima, facts if cfg.row_facts else {})


def _gradient(gradient, weights, fold, numbers, specs):
  """Computes the gradient of the batch's loss, summed over its microbatches.

  Args:
    gradient: that of `_loss`.
    weights: with the parameters that have no gradient.
    fold: (of_microbatch, given=) -> `microbatches.fold` over the batch.
    numbers: of the update.
    specs: Players of the layouts of the gradients.

  Returns:
    The gradients, Players; sums over the tokens; maxima; facts of the rows in
    the order of the plan.
  """
  def of_microbatch(rows, at, given):
    weights, numbers = given
    grads, (sums, maxima, facts) = gradient(
        weights.params, weights, rows, at, numbers)
    # In the layout of the parameters: the sum over the microbatches is then
    # split like them, where the partitioner could keep all of it everywhere.
    grads = grads.map(jax.lax.with_sharding_constraint, specs)
    return ((grads, sums), maxima), facts

  ((grads, sums), maxima), facts = fold(of_microbatch, given=(weights, numbers))
  return grads, sums, maxima, facts


def _descend(state, grads, optimizer, taken, *, dropped):
  """Clips the gradient and takes the optimiser step of a player, if `taken`."""
  def step(params, opt_state, grads):
    updates, opt_state = optimizer.transform.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state

  # One conditional around the step: a choice for each array would keep copies
  # of the parameters and of the optimiser's state.
  params, opt_state = jax.lax.cond(
      taken, step, lambda params, opt_state, _: (params, opt_state),
      state.params, state.opt_state, grads)
  return state.replace(
      step=state.step + taken, params=params, opt_state=opt_state,
      skipped=state.skipped + dropped,
      skipped_in_row=(state.skipped_in_row + 1) * dropped)


def _means(sums, calibration, own, setting):
  """Returns metrics from sums over the tokens, and the next calibration."""
  cfg = setting.cfg.rejection
  sums = dict(sums)
  metrics = {name: sums.pop(name) for name in _TOTALS if name in sums}
  if cfg:
    # The last update's calibration served this batch; this batch's serves the
    # next: a forward pass less than its own.
    counts = sums.pop('rejection')
    metrics.update(rejection_lib.metrics(counts, sums, calibration))
    if not own:
      calibration = rejection_lib.calibrate(
          cfg, counts, calibration, own=False)
  if 'experts' in sums:
    metrics.update(experts.load_metrics(sums.pop('experts')))
  tokens = jnp.maximum(metrics['tokens'], 1.0)
  return {**metrics, **jax.tree.map(lambda x: x / tokens, sums)}, calibration


def _calibration(previous, weights, rows, fold, loss, setting):
  """Computes the calibration that the batch uses; `previous` is the last one.

  The other arguments are those of `_gradient`, and `rows` in the order of the
  batch.

  Returns:
    The calibration, and whether it was computed from this batch; else it is
    that of the update before.
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
    weights, loss = given
    batch, _, noise = rows
    lam = loss.rejection['lam']
    now = forward.stats(
        weights, batch, at, loss.temperature, setting, entropy=False, lam=lam)
    z, z_topk = forward.normalizers(batch, now, lam, cfg)
    return (counts(now.logprobs, batch, noise, z=z, z_topk=z_topk), ()), ()

  if cfg.target == 'p_ref':
    # Both policies are known before the update: no pass of the model.
    batch, _, noise = rows
    z = 'z' if cfg.z == 'exact' else 'z_topk'
    sums = counts(batch.old_logprobs, batch, noise, **{z: batch.z})
  elif cfg.two_pass:
    (sums, _), _ = fold(of_microbatch, given=(weights, loss))
  else:
    return previous, False
  return rejection_lib.calibrate(cfg, sums, previous, own=True), True
