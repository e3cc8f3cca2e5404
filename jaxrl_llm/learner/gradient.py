"""Gradient of a whole batch's loss, accumulated over its microbatches.

`cfg` is a `update.LearnerConfig`, `nets` are `forward.Net` of the policy and of
the actor, if it is another model; `params` and `frozen` are tuples likewise.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxrl_llm.learner import actor as actor_lib
from jaxrl_llm.learner import forward, passes
from jaxrl_llm.learner import loss as loss_lib
from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.ops import policy_losses
from jaxrl_llm.sharding import collectives

_TOTALS = (
    'loss', 'policy_loss', 'tokens', 'actor_loss', 'actor_policy_loss',
    'actor_distill_loss')


def _calibration(
    previous, trees, batch, noise, work, loss, *, cfg, mesh, nets):
  """Computes the calibration that the batch uses; `previous` is the last one.

  Returns:
    The calibration, and whether it is the batch's own: not of the update
    before.
  """
  if not cfg.rejection:
    return None, True

  def counts(new, old, behaviour, mask, noise, **z):
    return rejection_lib.counts(cfg.rejection, rejection_lib.tokens(
        cfg.rejection, new, old, behaviour, mask, loss.rejection['lam'],
        noise=noise, **z), mask)

  if cfg.rejection.target == 'p_ref':
    old = batch.old_logprobs
    exact = cfg.rejection.z == 'exact'
    found = counts(
        old, old, batch.behaviour_logprobs, batch.mask, noise,
        **{'z' if exact else 'z_topk': batch.z})
  elif cfg.rejection.two_pass:
    def one(trees, rows, loss, length, shared):
      *trees, writer = trees
      lam = loss.rejection['lam']
      batch, _, noise = rows
      now = forward.stats(
          *trees, batch, loss.temperature, length, cfg=cfg, nets=nets,
          entropy=False, writer=writer, lam=lam, shared=shared)
      t = now.logprobs.shape[1]
      first = lambda x: None if x is None else x[:, :t]
      old = (now.logprobs if batch.old_logprobs is None
             else first(batch.old_logprobs))
      z, z_topk = forward.normalizers(batch, now, lam, cfg.rejection)
      return counts(
          now.logprobs, old, first(batch.behaviour_logprobs),
          first(batch.mask), first(noise), z=z, z_topk=z_topk)

    found, _, _ = passes.run(
        work, trees, loss, cfg=cfg, mesh=mesh, nets=nets, one=one,
        add=lambda place, total, new: jax.tree.map(jnp.add, total, new),
        init=lambda shape, lead: {
            name: jnp.zeros(()) for name in rejection_lib.COUNTS},
        done=lambda x: collectives.sum_over_data(x, mesh), out=P())
  else:
    return previous, False
  return rejection_lib.calibrate(
      cfg.rejection, found, previous, own=True), True


def _loss(params, kv, frozen, writer, rows, numbers, length, shared, *, cfg,
          nets):
  """Computes the weighted sums of the losses of a microbatch.

  `rows` are a LearnerBatch, the weights of its tokens and the mask's noise;
  `numbers` are LossParams, the calibration and lambda_distill; `kv` takes the
  place of that in `shared`, if it is not None.
  """
  if kv is not None:
    shared = shared._replace(kv=kv)
  batch, weights, noise = rows
  loss, calibration, distill = numbers
  lam = loss.rejection.get('lam')
  now = forward.stats(
      params, frozen, batch, loss.temperature, length, cfg=cfg, nets=nets,
      writer=writer, lam=lam, shared=shared)
  rejection = None
  if cfg.rejection:
    rejection = rejection_lib.Context(
        cfg.rejection, calibration, noise,
        *forward.normalizers(batch, now, lam, cfg.rejection))
  total, (sums, maxima, facts) = loss_lib.weighted_sum(
      now.logprobs, now.entropy, batch, weights, loss, rejection=rejection,
      objective=cfg.objective, aggregation=cfg.aggregation,
      correction=cfg.importance, kl_estimator=cfg.kl_estimator)
  if now.student is not None:
    # The gradient of each model is of its own loss alone.
    actor, more = actor_lib.weighted_sum(
        now, batch, weights, distill, loss.actor, cfg.actor)
    total, sums = total + actor, {**sums, **more}
  return total, (sums, maxima, facts)


def of_batch(
    params, frozen, writer, batch, loss, *, update, calibration, distill, cfg,
    mesh, nets, specs):
  """Computes the gradients of the whole batch's loss, metrics and row facts.

  Args:
    params: of the players.
    frozen: of the players.
    writer: parameters that wrote the rows, or None, see `forward.stats`.
    batch: LearnerBatch.
    loss: LossParams.
    update: [] number of the update, for the mask's noise.
    calibration: of the rejection, after the update before, or None.
    distill: [] lambda_distill, or None.
    cfg, mesh, nets: see above.
    specs: PartitionSpec of each parameter, like `params`.

  Returns:
    The gradients, like `params`; metrics; facts of rows; the calibration.
  """
  batch = batch.replace(mask=batch.mask & forward.real(batch))
  weights = policy_losses.token_weights(
      batch.mask, cfg.aggregation, where=batch.response_length > 0,
      budget=loss.budget)
  noise = None
  if cfg.rejection and cfg.rejection.mask == 'sampled':
    noise = rejection_lib.noise(
        batch.identity, update, cfg.max_response)

  work = passes.arrange(
      (batch, weights, noise), batch, jnp.any(batch.mask, 1), cfg, mesh)
  trees = params, frozen, writer
  calibration, own = _calibration(
      calibration, trees, batch, noise, work, loss, cfg=cfg, mesh=mesh,
      nets=nets)

  def differentiate(trees, rows, numbers, length, shared):
    params, *others = trees
    (grads, of_kv), (sums, maxima, facts) = jax.grad(
        _loss, argnums=(0, 1), has_aux=True)(
            params, shared.kv if isinstance(shared, forward.Shared) else None,
            *others, rows, numbers, length, shared, cfg=cfg, nets=nets)
    grads = jax.lax.with_sharding_constraint(grads, specs)
    return ((grads, sums), maxima, facts if cfg.row_facts else {}), of_kv

  def init(shape, lead):
    *shapes, facts = shape
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return *zeros, jax.tree.map(lambda x: jnp.zeros(lead, x.dtype), facts)

  def add(place, total, new):
    *total, facts = total
    *new, of_rows = new
    return (*map(jax.tree.map, (jnp.add, jnp.maximum), total, new),
            jax.tree.map(
                lambda out, x: out.at[place].set(x, mode='drop'), facts,
                of_rows))

  def done(carry):
    total, maxima, facts = carry
    if mesh.shape['data'] > 1:  # XLA rejects collectives over one group.
      maxima = jax.lax.pmax(maxima, 'data')
    return collectives.sum_over_data(total, mesh), maxima, facts

  ((grads, sums), maxima, facts), real, computed = passes.run(
      work, trees, (loss, calibration, distill), cfg=cfg, mesh=mesh, nets=nets,
      one=differentiate, add=add, init=init, done=done,
      out=(P(), P(), 'rows'), specs=specs)
  totals = {name: sums.pop(name) for name in _TOTALS if name in sums}
  tokens = jnp.maximum(totals['tokens'], 1.0)
  rows = jax.tree.map(
      lambda x: work.in_place(x, len(batch.mask)), facts)
  if cfg.rejection:
    found = sums.pop('rejection')
    totals.update(rejection_lib.metrics(found, sums, calibration))
    if not own:
      calibration = rejection_lib.calibrate(
          cfg.rejection, found, calibration, own=False)
  means = jax.tree.map(lambda x: x / tokens, sums)
  share = real / jnp.maximum(computed, 1)
  return grads, {
      **totals, **means, **maxima, 'real_tokens': share}, rows, calibration


