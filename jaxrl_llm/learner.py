"""The trainer's two device programs: `score` old tokens, `update` the policy.

Both go through rows by microbatches, longest rows first, see
`ops/microbatches`. The weights of the tokens in the loss are worked out on the
whole batch, before it is cut up: microbatches only add, so their number cannot
change the result.

Log-probs here are float32 and of the tempered policy,
softmax(logits / temperature).
"""

import dataclasses
import functools
from typing import Any, Callable, NamedTuple, Optional

from flax import struct
import jax
import jax.numpy as jnp
import optax

from jaxrl_llm import sharding
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import importance, kl, microbatches, policy_losses
from jaxrl_llm.ops.token_stats import token_stats
from jaxrl_llm.optimizer import Optimizer
from jaxrl_llm.types import Array, LearnerBatch


@struct.dataclass
class TrainState:
  """What learning has come to.

  Attributes:
    step: [] int32, optimiser steps taken; skipped ones are not.
    params: float32 parameter tree.
    opt_state: of the optimiser.
    skipped: [] int32, updates dropped for a loss or gradient not finite.
    skipped_in_row: [] int32, of those, how many since the last one taken.
  """
  step: Array
  params: Any
  opt_state: Any
  skipped: Array
  skipped_in_row: Array


@struct.dataclass
class LossParams:
  """Numbers of the loss: traced, so that changing one compiles nothing.

  Attributes:
    temperature: [] of the policy that is trained; the sampler's.
    clip_low: [] ratios below 1 - clip_low are clipped.
    clip_high: [] ratios above 1 + clip_high are clipped.
    entropy_bonus: [] weight of the entropy, in nats.
    kl_coef: [] weight of the KL to the anchor.
    importance_low: [] IcePop's lower bound of the weight.
    importance_cap: [] upper bound of an importance weight.
    budget: [] tokens that aggregation 'constant' divides each row by.
    dual_clip: [] bound of the loss at negative advantages; None is off.
  """
  temperature: Array
  clip_low: Array
  clip_high: Array
  entropy_bonus: Array
  kl_coef: Array
  importance_low: Array
  importance_cap: Array
  budget: Array
  dual_clip: Optional[Array] = None


def likelihood(new, old, advantages, mask, **unused_clips):
  """Supervised learning: -log p(token), weighted by the row's advantage."""
  del old
  loss = -new * jnp.where(mask, advantages[:, None], 0.0)
  nowhere = jnp.zeros_like(mask)
  return policy_losses.PolicyLoss(loss, jnp.ones_like(new), nowhere, nowhere)


OBJECTIVES = dict(policy_losses.OBJECTIVES, likelihood=likelihood)

# What a correction takes from LossParams.
_THRESHOLDS = dict(
    tis=dict(cap='importance_cap'),
    icepop=dict(low='importance_low', high='importance_cap'),
    sequence_tis=dict(cap='importance_cap'))


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
  """What is compiled into the programs.

  Attributes:
    microbatch: rows that go through the model at once.
    max_prompt: L.
    max_response: T.
    buckets: lengths, in tokens of a whole row, that microbatches may run at
      beside the full L + T. Each compiles the model once more: a handful.
    objective: key of OBJECTIVES.
    aggregation: see `policy_losses.token_weights`.
    importance: key of `importance.CORRECTIONS`, of old to behaviour policy.
    kl_estimator: key of `kl.KL_ESTIMATORS`; used where the batch has anchor
      log-probs.
    vocab_chunk: tokens whose logits exist at a time; None is 512 MB of them.
    remat: recompute each layer in the backward pass.
    attention: implementation, see `attention.causal_attention`.
    unroll: layers to unroll per step of the scan over layers.
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
  remat: bool = False
  attention: str = 'xla'
  unroll: int = 1

  def __post_init__(self):
    for name, value, known in (
        ('objective', self.objective, OBJECTIVES),
        ('aggregation', self.aggregation, policy_losses.AGGREGATIONS),
        ('importance', self.importance, importance.CORRECTIONS),
        ('kl_estimator', self.kl_estimator, kl.KL_ESTIMATORS)):
      if value not in known:
        raise ValueError(
            f'{name}={value!r} is not known: use one of {", ".join(known)}.')
    if self.objective == 'likelihood' and self.importance != 'none':
      raise ValueError(
          f"importance={self.importance!r} has no meaning for the objective "
          "'likelihood', whose rows no policy drew: use 'none'.")
    if self.microbatch < 1:
      raise ValueError(f'microbatch={self.microbatch} must be at least 1.')
    full = self.max_prompt + self.max_response
    if self.lengths[0] < 2 or self.lengths[-1] > full:
      raise ValueError(
          f'buckets={self.buckets} must lie between 2 and max_prompt + '
          f'max_response = {full}.')

  @property
  def lengths(self) -> tuple[int, ...]:
    """Every static row length, ascending; the last holds any row."""
    return tuple(sorted({*self.buckets, self.max_prompt + self.max_response}))


class Learner(NamedTuple):
  """The jitted programs.

  Attributes:
    init: parameters to TrainState. The state takes the parameters over.
    score: (params, LearnerBatch, temperature []) to log-probs [B, T] of the
      response tokens, 0 past each response.
    update: (TrainState, LearnerBatch, LossParams) to (TrainState, metrics).
      One optimiser step; the state that went in is donated.
  """
  init: Callable[[Any], TrainState]
  score: Callable[[Any, LearnerBatch, Array], Array]
  update: Callable[..., tuple[TrainState, dict[str, Array]]]


def _stats(
    params, batch, temperature, length, *, model, cfg, mesh, entropy=True):
  """TokenStats [B, t] of the responses in rows of at most `length` tokens."""
  if mesh is not None:
    batch = jax.lax.with_sharding_constraint(batch, sharding.rows(mesh))
  hidden, _ = transformer.forward(
      params, batch.tokens[:, :length], cfg=model, remat=cfg.remat,
      implementation=cfg.attention, unroll=cfg.unroll)
  t = min(cfg.max_response, length - 1)
  return token_stats(
      microbatches.columns(hidden, batch.prompt_length - 1, t),
      transformer.unembedding(params),
      microbatches.columns(batch.tokens, batch.prompt_length, t),
      temperature=temperature, softcap=model.logit_softcap,
      entropy=entropy, chunk=cfg.vocab_chunk)


def _real(batch: LearnerBatch) -> Array:
  """[B, T] bool, whether there is such a token in the response."""
  return jnp.arange(batch.mask.shape[1]) < batch.response_length[:, None]


def _fold(fn, combine, carry, rows, batch, needed, cfg):
  """`microbatches.fold` over those rows of `batch` that are `needed` [B]."""
  length = batch.prompt_length + batch.response_length
  return microbatches.fold(
      fn, combine, carry, rows, jnp.where(needed, length, 0),
      size=cfg.microbatch, lengths=cfg.lengths)


def _score(params, batch, temperature, *, cfg, **static):
  """See `Learner.score`."""
  _check(batch, cfg)

  def logprobs(micro, length):
    x = _stats(params, micro, temperature, length, cfg=cfg, entropy=False,
               **static)
    missing = cfg.max_response - x.logprobs.shape[1]
    return jnp.pad(x.logprobs, ((0, 0), (0, missing)))

  def write(i, out, x):
    return jax.lax.dynamic_update_slice_in_dim(out, x, i * cfg.microbatch, 0)

  zeros = jnp.zeros(batch.mask.shape, jnp.float32)
  out, order = _fold(
      logprobs, write, zeros, batch, batch, batch.response_length > 0, cfg)
  return jnp.where(_real(batch), zeros.at[order].set(out), 0.0)


def _loss(params, rows, loss, length, *, cfg, **static):
  """A microbatch's part of the loss, and its sums and maxima for metrics.

  With w the tokens' weights, in `rows` beside the LearnerBatch, and F the
  importance weight:

    sum_t w_t (F_t L_t - entropy_bonus H_t + kl_coef KL_t)
  """
  batch, weights = rows
  now = _stats(params, batch, loss.temperature, length, cfg=cfg, **static)
  mask = batch.mask[:, :now.logprobs.shape[1]]

  def trained(x):
    # What other tokens hold must not reach the loss, not even as 0 * inf.
    return jnp.where(mask, x[:, :mask.shape[1]], 0.0)

  new, entropy = trained(now.logprobs), trained(now.entropy)
  old = (jax.lax.stop_gradient(new) if batch.old_logprobs is None
         else trained(batch.old_logprobs))
  gap = old - trained(batch.behaviour_logprobs)

  policy = OBJECTIVES[cfg.objective](
      new, old, batch.advantages, mask, clip_low=loss.clip_low,
      clip_high=loss.clip_high, dual_clip=loss.dual_clip)
  thresholds = {name: getattr(loss, field) for name, field
                in _THRESHOLDS.get(cfg.importance, {}).items()}
  weight = importance.CORRECTIONS[cfg.importance](gap, mask, **thresholds)
  capped = (weight >= loss.importance_cap) | (weight == 0.0)
  weighted = weight * policy.loss
  token_loss = weighted - loss.entropy_bonus * entropy
  sums = {}
  if batch.anchor_logprobs is not None:
    divergence = kl.KL_ESTIMATORS[cfg.kl_estimator](
        new, trained(batch.anchor_logprobs))
    token_loss += loss.kl_coef * divergence
    sums['kl_anchor'] = divergence
  weights = trained(weights)
  total = jnp.sum(weights * token_loss)

  sums.update(
      entropy=entropy, clip_low=policy.clipped_low,
      clip_high=policy.clipped_high, ratio=policy.ratio,
      kl_old=kl.k3(new, old), behaviour_gap=jnp.abs(gap), importance=weight,
      importance_capped=capped & bool(thresholds))
  sums = jax.tree.map(lambda x: jnp.sum(trained(x)), sums)
  sums.update(
      loss=total, policy_loss=jnp.sum(weights * weighted),
      tokens=jnp.sum(mask, dtype=jnp.float32))
  maxima = dict(
      ratio_max=jnp.max(trained(policy.ratio)),
      behaviour_gap_max=jnp.max(jnp.abs(gap)))
  return total, jax.lax.stop_gradient((sums, maxima))


def _gradient(params, batch, loss, *, cfg, mesh, param_shardings, **static):
  """Gradient of the whole batch's loss, and metrics."""
  batch = batch.replace(mask=batch.mask & _real(batch))
  rows = batch, policy_losses.token_weights(
      batch.mask, cfg.aggregation, where=batch.response_length > 0,
      budget=loss.budget)

  def differentiate(rows, length):
    grads, (sums, maxima) = jax.grad(_loss, has_aux=True)(
        params, rows, loss, length, cfg=cfg, mesh=mesh, **static)
    if mesh is not None:
      grads = jax.lax.with_sharding_constraint(grads, param_shardings)
    return (grads, sums), maxima

  def add(_, total, new):
    return tuple(map(jax.tree.map, (jnp.add, jnp.maximum), total, new))

  shapes = jax.eval_shape(
      functools.partial(differentiate, length=cfg.lengths[0]),
      jax.tree.map(lambda x: x[:cfg.microbatch], rows))
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  ((grads, sums), maxima), _ = _fold(
      differentiate, add, zeros, rows, batch, jnp.any(batch.mask, 1), cfg)
  totals = {name: sums.pop(name) for name in ('loss', 'policy_loss', 'tokens')}
  tokens = jnp.maximum(totals['tokens'], 1.0)
  means = jax.tree.map(lambda x: x / tokens, sums)
  return grads, {**totals, **means, **maxima}


def _update(state, batch, loss, *, optimizer, cfg, **static):
  """See `Learner.update`."""
  _check(batch, cfg)
  grads, metrics = _gradient(state.params, batch, loss, cfg=cfg, **static)
  norm = optax.tree.norm(grads)
  updates, opt_state = optimizer.transform.update(
      grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  finite = jnp.isfinite(metrics['loss']) & jnp.isfinite(norm)
  params, opt_state = jax.tree.map(
      functools.partial(jnp.where, finite), (params, opt_state),
      (state.params, state.opt_state))
  dropped = 1 - finite.astype(jnp.int32)
  new = TrainState(
      step=state.step + finite, params=params, opt_state=opt_state,
      skipped=state.skipped + dropped,
      skipped_in_row=(state.skipped_in_row + 1) * dropped)
  metrics.update(
      grad_norm=norm, learning_rate=optimizer.schedule(state.step),
      skipped=new.skipped, skipped_in_row=new.skipped_in_row)
  return new, {k: jnp.asarray(v, jnp.float32) for k, v in metrics.items()}


def _check(batch: LearnerBatch, cfg: LearnerConfig):
  """Raises ValueError if the batch does not have the sizes of the config."""
  rows, columns = batch.tokens.shape
  if (columns, batch.mask.shape[1]) != (cfg.lengths[-1], cfg.max_response):
    raise ValueError(
        f'tokens {batch.tokens.shape} and mask {batch.mask.shape} do not fit '
        f'max_prompt={cfg.max_prompt}, max_response={cfg.max_response}: pad '
        f'them to {cfg.lengths[-1]} and {cfg.max_response} columns.')
  if rows % cfg.microbatch:
    raise ValueError(
        f'microbatch={cfg.microbatch} does not divide the {rows} rows of an '
        'update: choose a divisor, or add rows with response_length 0.')


def make(
    model: ModelConfig,
    cfg: LearnerConfig,
    optimizer: Optimizer,
    *,
    mesh: Optional[jax.sharding.Mesh] = None,
    param_shardings: Any = None,
) -> Learner:
  """Builds the programs for one model, config and optimiser.

  Args:
    model: the policy's architecture.
    cfg: what is static in the loss and in the way it is computed.
    optimizer: from `optimizer.make`.
    mesh: with axes 'data' and 'fsdp'; the rows of a microbatch are split over
      both. None: whatever device the arguments are on.
    param_shardings: tree of NamedSharding like the parameters, with `mesh`.

  Returns:
    The jitted programs. None of them compiles anew for other values.

  Raises:
    ValueError: the mesh does not divide the microbatch.
  """
  def init(params):
    zero = jnp.zeros((), jnp.int32)
    return TrainState(
        step=zero, params=params, opt_state=optimizer.transform.init(params),
        skipped=zero, skipped_in_row=zero)

  everywhere = state_shardings = None
  if mesh is not None:
    shards = sharding.data_shards(mesh)
    if cfg.microbatch % shards:
      raise ValueError(
          f"microbatch={cfg.microbatch} does not divide over the mesh's "
          f'{shards} data shards (data x fsdp): use a multiple of {shards}.')
    everywhere = sharding.replicated(mesh)
    state_shardings = _state_shardings(
        init, model, optimizer, param_shardings, everywhere)
  score = functools.partial(_score, model=model, cfg=cfg, mesh=mesh)
  update = functools.partial(
      _update, optimizer=optimizer, model=model, cfg=cfg, mesh=mesh,
      param_shardings=param_shardings)
  return Learner(
      init=jax.jit(init, out_shardings=state_shardings),
      score=jax.jit(score, out_shardings=everywhere),
      update=jax.jit(update, donate_argnums=0,
                     out_shardings=(state_shardings, everywhere)))


def _state_shardings(init, model, optimizer, param_shardings, everywhere):
  """A TrainState of shardings: moments lie as their parameters do."""
  state = jax.eval_shape(
      lambda: init(transformer.init(jax.random.key(0), model)))
  opt_state = optax.tree.map_params(
      optimizer.transform, lambda _, where: where, state.opt_state,
      param_shardings, transform_non_params=lambda _: everywhere)
  return TrainState(
      step=everywhere, params=param_shardings, opt_state=opt_state,
      skipped=everywhere, skipped_in_row=everywhere)
