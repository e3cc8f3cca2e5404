"""The learner's two device programs: `score` tokens, `update` the policy.

Both process rows in microbatches, see `forward`. The weights of the tokens in
the loss are computed for the whole batch, before it is split. Microbatches are
only summed, so their number does not change the result.
"""

import dataclasses
import functools
from typing import Any, Callable, NamedTuple, Optional

from flax import struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import optax

from jaxrl_llm import sharding
from jaxrl_llm.learner import forward
from jaxrl_llm.learner import loss as loss_lib
from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.learner.optimizer import Optimizer
from jaxrl_llm.models import attention, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import microbatches, policy_losses
from jaxrl_llm.sharding import collectives
from jaxrl_llm.types import Array


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
  """
  step: Array
  params: Any
  opt_state: Any
  skipped: Array
  skipped_in_row: Array
  calibration: Optional[rejection_lib.Calibration] = None


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
  """Static settings of the programs.

  Attributes:
    microbatch: rows of a microbatch.
    max_prompt: L.
    max_response: T.
    buckets: lengths of microbatches, in tokens of a whole row, in addition to
      the full L + T. The model is compiled once for each, so use only a few.
    objective: key of `loss.OBJECTIVES`.
    aggregation: see `policy_losses.token_weights`.
    importance: key of `importance.CORRECTIONS`, from the behaviour policy to
      the old one.
    kl_estimator: key of `kl.KL_ESTIMATORS`; used if the batch has anchor
      log-probs.
    vocab_chunk: tokens whose logits exist at a time, over all devices that
      share them; None for at most 512 MB of logits on each device.
    remat: activations to recompute in the backward pass, one of
      `transformer.REMAT`; see `transformer.forward`.
    attention: one of `attention.IMPLEMENTATIONS`.
    unroll: layers to unroll per step of the scan over layers.
    row_facts: whether an update also returns facts about each row.
    rejection: rejects tokens that another policy wrote; None keeps all.
  """
  microbatch: int
  max_prompt: int
  max_response: int
  buckets: tuple[int, ...] = ()
  objective: str = 'clip'
  aggregation: str = 'token_mean'
  importance: str = 'none'
  kl_estimator: str = 'k3'
  vocab_chunk: Optional[int] = None
  remat: str = 'none'
  attention: str = 'auto'
  unroll: int = 1
  row_facts: bool = False
  rejection: Optional[rejection_lib.Rejection] = None

  def __post_init__(self):
    loss_lib.check(
        self.objective, self.aggregation, self.importance, self.kl_estimator)
    if self.remat not in transformer.REMAT:
      raise ValueError(
          f'remat={self.remat!r} is not known: use one of '
          f'{", ".join(transformer.REMAT)}.')
    if self.microbatch < 1:
      raise ValueError(f'microbatch={self.microbatch} must be at least 1.')
    full = self.max_prompt + self.max_response
    if self.lengths[0] < 2 or self.lengths[-1] > full:
      raise ValueError(
          f'buckets={self.buckets} must lie between 2 and max_prompt + '
          f'max_response = {full}.')

  @property
  def lengths(self) -> tuple[int, ...]:
    """All static row lengths, ascending; every row fits into the last."""
    return tuple(sorted({*self.buckets, self.max_prompt + self.max_response}))


class Learner(NamedTuple):
  """The jitted programs. `frozen` are the parameters not trained, or None.

  Attributes:
    state: TrainState of jax.ShapeDtypeStruct, with layouts.
    init: (params) -> TrainState, which holds these parameters.
    score: (params, batch, loss, frozen=None) -> forward.Scores of the response
      tokens. `loss` is LossParams.
    update: (state, batch, loss, frozen=None, actor=None) -> (state, metrics).
      Takes one optimiser step; the input state is donated. `actor` are the
      parameters that wrote the rows, where the rejection needs them. Metrics
      are [] float32. With `LearnerConfig.row_facts`, metrics['rows'] has
      'entropy' and 'clip_share' of each row [B], means over its trained tokens
      (0 without one).
  """
  state: TrainState
  init: Callable[[Any], TrainState]
  score: Callable[..., forward.Scores]
  update: Callable[..., tuple[TrainState, dict[str, Array]]]


def _topk_normalizer(batch, now, lam):
  """Returns the top-k normaliser [B, t] of the rejection, or None."""
  if batch.z is not None:  # from `score`
    return batch.z[:, :now.logprobs.shape[1]]
  return forward.topk_normalizer(batch, now, lam)


def _calibration(
    state, trees, batch, noise, cut, loss, *, cfg, mesh, **static):
  """Computes the calibration that the batch uses.

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
    found = counts(
        old, old, batch.behaviour_logprobs, batch.mask, noise, z_topk=batch.z)
  elif cfg.rejection.two_pass:
    @forward.by_data_group(mesh, P())
    def accumulate(trees, cut, loss):
      lam = loss.rejection['lam']

      def one(rows, length):
        batch, _, noise = rows
        now = forward.stats(
            *trees[:2], batch, loss.temperature, length, cfg=cfg,
            entropy=False, actor=trees[2], lam=lam, **static)
        t = now.logprobs.shape[1]
        first = lambda x: None if x is None else x[:, :t]
        old = (now.logprobs if batch.old_logprobs is None
               else first(batch.old_logprobs))
        return counts(
            now.logprobs, old, first(batch.behaviour_logprobs),
            first(batch.mask), first(noise), z=now.overlap,
            z_topk=_topk_normalizer(batch, now, lam))

      zeros = {name: jnp.zeros(()) for name in rejection_lib.COUNTS}
      total = microbatches.fold(
          one, lambda i, total, new: jax.tree.map(jnp.add, total, new), zeros,
          cut, lengths=cfg.lengths)
      return total if mesh.shape['data'] == 1 else jax.lax.psum(total, 'data')

    found = accumulate(trees, cut, loss)
  else:
    return state.calibration, False
  return rejection_lib.calibrate(
      cfg.rejection, found, state.calibration, own=True), True


def _loss(params, frozen, actor, rows, numbers, length, *, cfg, **static):
  """Computes `loss.weighted_sum` of a microbatch.

  `rows` are a LearnerBatch, the weights of its tokens and the mask's noise;
  `numbers` are LossParams and the calibration.
  """
  batch, weights, noise = rows
  loss, calibration = numbers
  lam = loss.rejection.get('lam')
  now = forward.stats(
      params, frozen, batch, loss.temperature, length, cfg=cfg, actor=actor,
      lam=lam, **static)
  return loss_lib.weighted_sum(
      now.logprobs, now.entropy, batch, weights, loss,
      rejection=cfg.rejection and rejection_lib.Context(
          cfg.rejection, calibration, noise, z=now.overlap,
          z_topk=_topk_normalizer(batch, now, lam)),
      objective=cfg.objective, aggregation=cfg.aggregation,
      correction=cfg.importance, kl_estimator=cfg.kl_estimator)


def _gradient(
    state, frozen, actor, batch, loss, *, cfg, mesh, specs, **static):
  """Computes the gradient of the whole batch's loss, metrics and row facts.

  Returns:
    The gradient, metrics, facts of rows, and the calibration.
  """
  batch = batch.replace(mask=batch.mask & forward.real(batch))
  weights = policy_losses.token_weights(
      batch.mask, cfg.aggregation, where=batch.response_length > 0,
      budget=loss.budget)
  noise = None
  if cfg.rejection and cfg.rejection.mask == 'sampled':
    noise = rejection_lib.noise(
        batch.identity, state.step + state.skipped, cfg.max_response)

  cut, order = forward.arrange(
      (batch, weights, noise), batch, jnp.any(batch.mask, 1), cfg)
  trees = state.params, frozen, actor
  calibration, own = _calibration(
      state, trees, batch, noise, cut, loss, cfg=cfg, mesh=mesh, **static)

  @forward.by_data_group(mesh, (P(), P(), P(None, 'data')))
  def accumulate(trees, cut, numbers):
    def differentiate(rows, length):
      grads, (sums, maxima, facts) = jax.grad(_loss, has_aux=True)(
          *trees, rows, numbers, length, cfg=cfg, **static)
      grads = jax.lax.with_sharding_constraint(grads, specs)
      return (grads, sums), maxima, facts if cfg.row_facts else {}

    def add(i, total, new):
      *total, facts = total
      *new, of_rows = new
      return (*map(jax.tree.map, (jnp.add, jnp.maximum), total, new),
              jax.tree.map(lambda out, x: out.at[i].set(x), facts, of_rows))

    *shapes, of_rows = jax.eval_shape(
        functools.partial(differentiate, length=cfg.lengths[0]),
        jax.tree.map(lambda x: x[0], cut.rows))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    facts = jax.tree.map(
        lambda x: jnp.zeros((len(cut.bucket), *x.shape), x.dtype), of_rows)
    total, maxima, facts = microbatches.fold(
        differentiate, add, (*zeros, facts), cut, lengths=cfg.lengths)
    if mesh.shape['data'] == 1:  # XLA rejects collectives over one group.
      return total, maxima, facts
    return jax.lax.psum(total, 'data'), jax.lax.pmax(maxima, 'data'), facts

  (grads, sums), maxima, facts = accumulate(trees, cut, (loss, calibration))
  totals = {name: sums.pop(name) for name in ('loss', 'policy_loss', 'tokens')}
  tokens = jnp.maximum(totals['tokens'], 1.0)
  rows = jax.tree.map(
      lambda x: jnp.zeros(len(order)).at[order].set(x.reshape(-1)), facts)
  if cfg.rejection:
    found = sums.pop('rejection')
    totals.update(rejection_lib.metrics(found, sums, calibration))
    if not own:
      calibration = rejection_lib.calibrate(
          cfg.rejection, found, calibration, own=False)
  means = jax.tree.map(lambda x: x / tokens, sums)
  return grads, {**totals, **means, **maxima}, rows, calibration


def _update(
    state, batch, loss, frozen=None, actor=None, *, optimizer, cfg, **static):
  """Computes `Learner.update`."""
  forward.check(batch, cfg)
  grads, metrics, rows, calibration = _gradient(
      state, frozen, actor, batch, loss, cfg=cfg, **static)
  norm = optax.tree.norm(grads)
  updates, opt_state = optimizer.transform.update(
      grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  finite = jnp.isfinite(metrics['loss']) & jnp.isfinite(norm)
  # A batch without trained tokens changes nothing: no momentum, no decay.
  taken = finite & (metrics['tokens'] > 0) & (
      metrics.get('obrs_empty', 0.0) == 0)
  params, opt_state = jax.tree.map(
      functools.partial(jnp.where, taken), (params, opt_state),
      (state.params, state.opt_state))
  dropped = 1 - finite.astype(jnp.int32)
  new = TrainState(
      step=state.step + taken, params=params, opt_state=opt_state,
      skipped=state.skipped + dropped,
      skipped_in_row=(state.skipped_in_row + 1) * dropped,
      calibration=calibration)
  metrics.update(
      grad_norm=norm, learning_rate=optimizer.schedule(state.step),
      skipped=new.skipped, skipped_in_row=new.skipped_in_row)
  metrics = {k: jnp.asarray(v, jnp.float32) for k, v in metrics.items()}
  return new, {**metrics, 'rows': rows} if rows else metrics


def make(
    model: ModelConfig,
    cfg: LearnerConfig,
    optimizer: Optimizer,
    *,
    mesh: Optional[jax.sharding.Mesh] = None,
    trained: Any = None,
    compose: Callable[[Any, Any], Any] = lambda params, frozen: params,
) -> Learner:
  """Makes the programs for one model, config and optimiser.

  Args:
    model: the policy's architecture.
    cfg: static settings.
    optimizer: from `optimizer.make`.
    mesh: see `sharding`; the rows of a microbatch are split over 'data' and
      'fsdp'. None for the first device only.
    trained: shapes of the trained parameters; None for all parameters.
    compose: (trained, frozen) -> all parameters.

  Returns:
    The jitted programs. New values in their arguments never recompile them.

  Raises:
    ValueError: the mesh does not divide the microbatch, or the config's
      attention is unknown.
  """
  mesh = mesh or sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  shards = sharding.data_shards(mesh)
  if cfg.microbatch % shards:
    raise ValueError(
        f"microbatch={cfg.microbatch} does not divide over the mesh's "
        f'{shards} data shards (data x fsdp): use a multiple of {shards}.')
  cfg = dataclasses.replace(cfg, attention=attention.resolve(
      cfg.attention, mesh.devices.flat[0].platform, cfg.lengths[-1]))

  def init(params):
    zero = jnp.zeros((), jnp.int32)
    return TrainState(
        step=zero, params=params, opt_state=optimizer.transform.init(params),
        skipped=zero, skipped_in_row=zero,
        calibration=rejection_lib.init() if cfg.rejection else None)

  if trained is None:
    trained = jax.eval_shape(
        lambda: transformer.init(jax.random.key(0), model))
  shapes = jax.eval_shape(init, trained)
  layout = sharding.optimizer_shardings(
      shapes, shapes.params, sharding.TRAIN_RULES, mesh)
  whole = sharding.replicated(mesh)
  axes = collectives.vocabulary_axes(
      sharding.TRAIN_RULES if 'embed' in trained else sharding.SAMPLE_RULES,
      mesh)
  fetch = None
  if mesh.shape['fsdp'] > 1:
    fetch = collectives.gathering(sharding.TRAIN_RULES, model.dtype)
  static = dict(
      model=model, cfg=cfg, mesh=mesh, compose=compose, axes=axes, fetch=fetch)
  specs = jax.tree.map(lambda place: place.spec, layout.params)
  return Learner(
      state=jax.tree.map(
          lambda x, place: jax.ShapeDtypeStruct(
              x.shape, x.dtype, sharding=place), shapes, layout),
      init=jax.jit(init, out_shardings=layout),
      score=jax.jit(
          functools.partial(forward.score, **static), out_shardings=whole),
      update=jax.jit(
          functools.partial(
              _update, optimizer=optimizer, specs=specs, **static),
          donate_argnums=0, out_shardings=(layout, whole)))
