"""One update of the players: forward, statistics, loss, gradient, clip, step.

The loss of the policy is a sum of terms, token by token: the objective with its
correction, entropy, KL, a term of the user. Log-probs are float32, under the
tempered policy softmax(logits / temperature).

The weights of the tokens in the loss are computed for the whole batch, before
it is split into microbatches. These are only summed, so that their number does
not change the result.

Metrics are means over the tokens that an update trains on, unless they say
otherwise.

Metrics:
  update/loss [loss]: weighted sum over the tokens, of all terms
  update/policy_loss [loss]: the surrogate alone
  update/tokens [tokens]: trained on, summed over the updates
  update/processed [tokens]: of these, without those that learner.skip_zero
    leaves out, of which no mean is taken
  update/entropy [nats per token]: entropy of the policy in training
  update/clip_low [share]: tokens whose ratio the lower bound clipped
  update/clip_high [share]: tokens whose ratio the upper bound clipped
  update/ratio [ratio]: new over old probability
  update/ratio_max [ratio]: the largest new over old probability
  update/kl_old [nats per token]: KL(new || old) of the policy, estimated by k3
  update/behaviour_gap [nats]: |log-prob before the update - log-prob of the
    sampler|
  update/behaviour_gap_max [nats]: the largest such difference
  update/importance [weight]: of a token, for the policy that wrote it
  update/importance_capped [share]: tokens whose weight is at its cap, or 0
  update/teacher_kl [nats per token]: KL(policy || teacher), see teacher.kl
  update/kl_anchor [nats per token]: KL to the policy that RL started from, with
    loss.kl_coef
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
from jaxrl_llm.learner import calibration as calibration_lib
from jaxrl_llm.learner import forward, packing
from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.learner import teacher as teacher_lib
from jaxrl_llm.learner.forward import BEHAVIOUR
from jaxrl_llm.learner.options import (
  ACTOR,
  LossChoices,
  LossWeights,
  POLICY,
  TEACHER,
)
from jaxrl_llm.models import experts
from jaxrl_llm.ops import importance, kl, obrs, policy_losses
from jaxrl_llm.ops.token_stats import TeacherStats
from jaxrl_llm.types import Array, LearnerBatch

# Sums over the tokens that stay sums; of all others the mean is reported.
_TOTALS = (
    'loss', 'policy_loss', 'processed', 'actor_loss', 'actor_policy_loss',
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


@struct.dataclass(kw_only=True)
class LossParams(LossWeights):
  """Hyperparameters of the loss; traced, so new values never recompile.

  Those of `LossWeights` are [].

  Attributes:
    temperature: [] temperature of the trained policy, equal to the sampler's.
    budget: [] tokens, the divisor of each row in aggregation 'constant'.
    objective: name to [], hyperparameters of the objective.
    importance: name to [], thresholds of the importance correction.
    term: name to [], hyperparameters of the further term.
    rejection: name to [], lam, c1 and c2; empty without rejection.
    actor: numbers of `actor.weighted_sum`; empty if the actor is the policy.
    teacher: coef and perhaps temperature; empty without a teacher.
  """
  temperature: Array
  budget: Array
  objective: dict[str, Array]
  importance: dict[str, Array]
  term: dict[str, Array] = struct.field(default_factory=dict)
  rejection: dict[str, Array] = struct.field(default_factory=dict)
  actor: dict[str, Array] = struct.field(default_factory=dict)
  teacher: dict[str, Array] = struct.field(default_factory=dict)


class Constants(NamedTuple):
  """Arguments of the loss that have no gradient, the same in all microbatches.

  Attributes:
    others: `LearnerPrograms.update`'s.
    frozen: parameters of the policy that are not trained, or None.
    loss: LossParams.
    calibration: of the rejection, or None.
    distill: [] lambda_distill, or None.
  """
  others: dict[str, Any]
  frozen: Any
  loss: LossParams
  calibration: Optional[rejection_lib.Calibration]
  distill: Optional[Array]


def update(
    state, batch, plan, loss, frozen=None, others=None, *, setting):
  """Computes `LearnerPrograms.update`.

  Args:
    state, batch, plan, loss, frozen, others: those of `LearnerPrograms.update`.
    setting: forward.Setting.
  """
  cfg, learning = setting.cfg, setting.optimizers
  policy, writer = state[POLICY], state[setting.writer]
  forward.check(batch, cfg)

  # ---- ROWS: which tokens count, and how much ----
  # A token behind the response stands for whatever its list has there.
  batch = with_advantages(batch.replace(mask=batch.mask & forward.real(batch)))
  # Of the whole batch: microbatches and devices only add their parts.
  weights = policy_losses.token_weights(
      batch.mask, cfg.aggregation, where=batch.response_length > 0,
      budget=loss.budget)
  noise = None
  if cfg.rejection and cfg.rejection.mask == 'sampled':
    # Skipped updates count too: a row that comes back gets other noise.
    noise = rejection_lib.noise(
        batch.identity, policy.step + policy.skipped, cfg.max_response)
  rows = batch, weights, noise

  # ---- GRADIENT: summed over the microbatches ----
  params = {name: state[name].params for name in learning}
  if cfg.rejection and cfg.rejection.needs_actor and (
      setting.writer not in learning):
    others = {**(others or {}), BEHAVIOUR: writer.params}
  others = setting.others(others, policy.params)
  fold = functools.partial(
      packing.fold, plan=plan, mesh=setting.mesh,
      rows=packing.arrange(rows, plan, setting.mesh))
  calibration, own = calibration_lib.calibration(
      policy.calibration, params | {
          name: tree for name, tree in others.items() if name != TEACHER},
      frozen, rows, fold, loss, setting)
  gradient = jax.grad(functools.partial(_loss, setting=setting), has_aux=True)

  def of_microbatch(rows, at, given):
    params, given = given
    grads, (sums, maxima, facts) = gradient(params, given, rows, at)
    # In the layout of the parameters: the sum over the microbatches is then
    # split like them, where the partitioner could keep all of it everywhere.
    grads = {name: jax.lax.with_sharding_constraint(grad, setting.specs[name])
             for name, grad in grads.items()}
    return ((grads, sums), maxima), facts

  ((grads, sums), maxima), facts = fold(of_microbatch, given=(params, Constants(
      others, frozen, loss, calibration, writer.distill)))

  # ---- METRICS: means over the batch, and the next calibration ----
  metrics, calibration = _means(sums, calibration, own, setting)
  metrics.update(
      maxima, tokens=jnp.sum(batch.mask, dtype=jnp.float32), **plan.shares)

  # ---- STEP: all players or none, so that their steps stay of one batch ----
  new = _stepped(state, grads, metrics, calibration, loss, setting)
  metrics = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), metrics)
  if facts:
    metrics['rows'] = packing.in_place(facts, plan, len(batch.mask))
  return {**state, **new}, metrics


def with_advantages(batch: LearnerBatch) -> LearnerBatch:
  """Returns a batch whose advantages are [B, T] if it has them by token."""
  if batch.token_advantages is None:
    return batch
  # Masked tokens have any, and a user's objective may multiply by them.
  return batch.replace(
      advantages=jnp.where(batch.mask, batch.token_advantages, 0.0))


def _loss(params, given, rows, at, *, setting):
  """Computes the sum of the players' losses of a microbatch.

  Args:
    params: name of each player that learns to its parameters; the gradient is
      with respect to them.
    given: the rest.
    rows: of the microbatch: LearnerBatch, weights and noise of its tokens.
    at: packing.MicrobatchTokens.
    setting: of the program.

  Returns:
    The sum; and the sums, maxima and facts of rows of `weighted_sum`.
  """
  cfg, loss = setting.cfg, given.loss
  batch, weights, noise = rows
  lam = loss.rejection.get('lam')
  now = forward.stats(
      {**params, **given.others}, given.frozen, batch, at, forward.Numbers(
          loss.temperature, lam, loss.teacher.get('temperature')), setting)
  rejection = None
  if cfg.rejection:
    rejection = rejection_lib.Context(
        cfg.rejection, given.calibration, noise,
        *calibration_lib.normalizers(batch, now, lam, cfg.rejection))
  total, (sums, maxima, facts) = weighted_sum(
      now.logprobs, now.entropy, batch, weights, loss, cfg=cfg,
      rejection=rejection, teacher=now.teacher)
  if now.student is not None:
    # The gradient of each model is of its own loss alone.
    of_actor, more = actor_lib.weighted_sum(
        now, batch, weights, given.distill, loss.actor, cfg.actor)
    total, sums = total + of_actor, {**sums, **more}
  if now.experts is not None:
    sums = {**sums, 'experts': now.experts}
  return total, (sums, maxima, facts if cfg.row_facts else {})


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
      calibration = rejection_lib.calibrate(cfg, counts, calibration, own=False)
  if 'experts' in sums:
    metrics.update(experts.load_metrics(sums.pop('experts')))
  tokens = jnp.maximum(metrics['processed'], 1.0)
  return {**metrics, **jax.tree.map(lambda x: x / tokens, sums)}, calibration


def _stepped(state, grads, metrics, calibration, loss, setting):
  """Takes the steps of the players, and completes the metrics.

  Args:
    state: name to player.
    grads: name to gradient, of the players that learn.
    metrics: name to number; it gets those of the gradients and the steps.
    calibration: of the rejection, for the next batch.
    loss: LossParams.
    setting: forward.Setting.

  Returns:
    The players that learn, after the step.
  """
  learning, writer = setting.optimizers, state[setting.writer]
  prefix = lambda name: '' if name == POLICY else f'{name}_'
  norms = {name: optax.tree.norm(grad) for name, grad in grads.items()}
  for name, norm in norms.items():
    metrics[f'{prefix(name)}grad_norm'] = norm
    metrics[f'{prefix(name)}learning_rate'] = learning[name].schedule(
        state[name].step)
  # One number that is not finite makes the sum so.
  finite = jnp.isfinite(sum(
      metrics[f'{prefix(name)}loss'] + norm for name, norm in norms.items()))
  # A batch without trained tokens changes nothing: no momentum, no decay.
  taken = finite & (metrics['tokens'] > 0)
  new = {
      name: _descend(
          state[name], grads[name], optimizer,
          # The policy learns nothing where the rejection leaves no token.
          taken & (name != POLICY or metrics.get('obrs_empty', 0.0) == 0),
          dropped=1 - finite.astype(jnp.int32))
      for name, optimizer in learning.items()}
  new[POLICY] = new[POLICY].replace(calibration=jax.tree.map(
      functools.partial(jnp.where, finite), calibration,
      state[POLICY].calibration))
  metrics.update(
      skipped=new[POLICY].skipped, skipped_in_row=new[POLICY].skipped_in_row)
  if ACTOR in new:
    metrics.update(lambda_distill=writer.distill)
    distill = actor_lib.controlled(
        writer.distill, metrics['actor_kl'], loss.actor, setting.cfg.actor)
    new[ACTOR] = new[ACTOR].replace(
        distill=jnp.where(taken, distill, writer.distill))
  return new


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


def named(function: Any, batch: LearnerBatch) -> dict[str, Array]:
  """Returns the columns that a function names; 0 at tokens that are masked."""
  found = {name: batch.columns[name] for name in getattr(
      function, 'columns', ()) if name in batch.columns}
  return {
      name: jnp.where(
          jnp.expand_dims(batch.mask, range(1, x.ndim - 1)), x,
          jnp.zeros((), x.dtype))
      if batch.declared[name].axes[-1:] == 'T' else x
      for name, x in found.items()}


def likelihood(new, old, advantages, mask):
  """Computes the supervised loss, -log p(token) times the row's advantage."""
  del old
  loss = -new * jnp.where(mask, policy_losses.by_token(advantages), 0.0)
  nowhere = jnp.zeros_like(mask)
  return policy_losses.PolicyLoss(loss, jnp.ones_like(new), nowhere, nowhere)


OBJECTIVES = dict(policy_losses.OBJECTIVES, likelihood=likelihood)


def weighted_sum(
    new: Array, entropy: Array, batch: LearnerBatch, weights: Array,
    loss: LossParams, *, cfg: LossChoices,
    rejection: Optional[rejection_lib.Context] = None,
    teacher: Optional[TeacherStats] = None) -> tuple[Array, Any]:
  """Computes a microbatch's part of the policy's loss, and its metrics.

  With the tokens' weights w and the importance weights F, the loss is

    sum_t w_t (F_t (L_t + D_t) - entropy_bonus H_t + kl_coef KL_t + X_t)

  Under rejection, F_t is the factor of `rejection.factors`. D is the KL to the
  teacher, from `teacher.loss`. X is the further term `loss.term`.

  Args:
    new: [B, T] log-probs under the trained policy, with gradient.
    entropy: [B, T] entropy of the trained policy, nats.
    batch: the rows; without old log-probs, `new` is used in their place. Its
      advantages are [B], or [B, T] by token.
    weights: [B, T] weights of tokens, from `policy_losses.token_weights`.
    loss: hyperparameters.
    cfg: static choices.
    rejection: of tokens that another policy wrote; None keeps all.
    teacher: of the policy with a teacher; None without one.

  Returns:
    The loss [], and (sums, maxima, rows) without gradient: dictionaries of []
    for the metrics, the objective's own under 'objective', and of [B], the mean
    `entropy` and the `clip_share` of each row's trained tokens.
  """
  mask = batch.mask

  def trained(x):
    # Masked tokens must not reach the loss, not even as 0 * inf.
    return jnp.where(mask, x, 0.0)

  new, entropy, weights = map(trained, (new, entropy, weights))
  # In the first update after a rollout the new policy is the old one. Its own
  # log-probs make every ratio exactly 1; those of another program would not.
  old = (jax.lax.stop_gradient(new) if batch.old_logprobs is None
         else trained(batch.old_logprobs))
  logprobs = obrs.Logprobs(new, old, trained(batch.behaviour_logprobs))
  gap = old - logprobs.behaviour
  policy, own = _surrogate(new, old, batch, loss, cfg)
  weight, sums, counts = _importance(logprobs, batch, loss, cfg, rejection)

  weighted = weight * policy.loss
  # The bonus is subtracted here: as a negative term of its own it would round
  # otherwise.
  terms = dict(policy=weighted - loss.entropy_bonus * entropy)
  if teacher is not None:
    kl_teacher, sums['teacher_kl'] = teacher_lib.loss(
        *map(trained, (new, old)), jax.tree.map(trained, teacher))
    terms['teacher'] = loss.teacher['coef'] * weight * kl_teacher
  if batch.anchor_logprobs is not None:
    sums['kl_anchor'] = kl.KL_ESTIMATORS[cfg.kl_estimator](
        new, trained(batch.anchor_logprobs))
    terms['anchor'] = loss.kl_coef * sums['kl_anchor']
  if callable(cfg.term):
    further, more = policy_losses.with_metrics(cfg.term(
        new, old, entropy, mask, **loss.term, **named(cfg.term, batch)))
    terms['further'], own = trained(further), {**own, **more}
  # Token by token, in this order: a run's bits depend on it.
  total = jnp.sum(weights * functools.reduce(jnp.add, terms.values()))

  sums.update(
      entropy=entropy, clip_low=policy.clipped_low,
      clip_high=policy.clipped_high, ratio=policy.ratio,
      kl_old=kl.k3(new, old), behaviour_gap=jnp.abs(gap),
      **({'objective': own} if own else {}))
  # Sums, not means: the denominators are those of the whole batch, whatever
  # microbatch a row is in.
  sums = jax.tree.map(lambda x: jnp.sum(trained(x)), sums)
  sums.update(
      counts, loss=total, policy_loss=jnp.sum(weights * weighted),
      processed=jnp.sum(mask, dtype=jnp.float32))
  count = jnp.maximum(jnp.sum(mask, 1), 1)
  rows = dict(
      entropy=jnp.sum(entropy, 1) / count, clip_share=jnp.sum(trained(
          policy.clipped_low | policy.clipped_high), 1) / count)
  maxima = dict(
      ratio_max=jnp.max(trained(policy.ratio)),
      behaviour_gap_max=jnp.max(jnp.abs(gap)))
  return total, jax.lax.stop_gradient((sums, maxima, rows))


def _surrogate(new, old, batch, loss, cfg):
  """Computes the PolicyLoss of the objective, and its own metrics."""
  objective = OBJECTIVES.get(cfg.objective, cfg.objective)
  policy, own = policy_losses.with_metrics(objective(
      new, old, batch.advantages, batch.mask, **loss.objective,
      **named(objective, batch)))
  if callable(cfg.objective):  # the user's may leave anything where masked
    policy = policy._replace(loss=jnp.where(batch.mask, policy.loss, 0.0))
  return policy, own


def _importance(logprobs, batch, loss, cfg, rejection):
  """Computes the factors that the tokens' losses get for who wrote them.

  Args:
    logprobs: [B, T], 0 where masked.
    batch: the rows.
    loss: hyperparameters.
    cfg: static choices.
    rejection: of the microbatch, or None.

  Returns:
    [B, T] factors; metrics, name to [B, T]; and, under rejection, the sums
    that its calibration needs.
  """
  mask = batch.mask
  correct = functools.partial(
      importance.correction(cfg.importance), **loss.importance,
      **named(cfg.importance, batch))
  if rejection is not None:
    facts, factor, metrics = rejection_lib.factors(
        rejection, logprobs, batch.advantages, mask, loss.rejection,
        aggregation=cfg.aggregation, clipped=cfg.objective != 'no_clip',
        correction=None if cfg.importance == 'none' else correct)
    return factor, metrics, dict(
        rejection=rejection_lib.counts(rejection.cfg, facts, mask))
  weight = correct(logprobs.old - logprobs.behaviour, mask)
  capped = jnp.zeros_like(mask)
  if 'cap' in loss.importance:
    capped = (weight >= loss.importance['cap']) | (weight == 0.0)
  return weight, dict(importance=weight, importance_capped=capped), {}
