"""The learner's two device programs: `score` tokens, `update` the policy.

Both process rows in microbatches, longest rows first, see `ops/microbatches`.
The weights of the tokens in the loss are computed for the whole batch, before
it is split. Microbatches are only summed, so their number does not change the
result.
"""

import dataclasses
import functools
import operator
from typing import Any, Callable, NamedTuple, Optional

from flax import struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import optax

from jaxrl_llm import sharding
from jaxrl_llm.learner import loss as loss_lib
from jaxrl_llm.learner.optimizer import Optimizer
from jaxrl_llm.models import attention, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import microbatches, policy_losses
from jaxrl_llm.ops.token_stats import token_stats
from jaxrl_llm.sharding import collectives
from jaxrl_llm.types import Array, LearnerBatch


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
  """
  step: Array
  params: Any
  opt_state: Any
  skipped: Array
  skipped_in_row: Array


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
    score: (params, batch, temperature [], frozen=None) -> log-probs [B, T] of
      the response tokens, 0 past each response.
    update: (state, batch, loss, frozen=None) -> (state, metrics). Takes one
      optimiser step; the input state is donated. `loss` is LossParams. Metrics
      are [] float32. With `LearnerConfig.row_facts`, metrics['rows'] has
      'entropy' and 'clip_share' of each row [B], means over its trained tokens
      (0 without one).
  """
  state: TrainState
  init: Callable[[Any], TrainState]
  score: Callable[[Any, LearnerBatch, Array], Array]
  update: Callable[..., tuple[TrainState, dict[str, Array]]]


def _stats(
    params, frozen, batch, temperature, length, *, model, cfg, compose, axes,
    fetch, entropy=True):
  """Computes TokenStats [B, t] of responses in rows of at most `length` tokens.

  The vocabulary is split over the mesh axes `axes`. Its operations use explicit
  collectives, because the partitioner would all-gather the embeddings. `fetch`
  all-gathers the weights of a layer.
  """
  batch = jax.lax.with_sharding_constraint(batch, P('fsdp'))
  params = compose(params, frozen)
  t = min(cfg.max_response, length - 1)

  def stats(hidden, tokens, prompt_length, unembed, temperature):
    return token_stats(
        microbatches.columns(hidden, prompt_length - 1, t), unembed,
        microbatches.columns(tokens, prompt_length, t),
        temperature=temperature, softcap=model.logit_softcap, entropy=entropy,
        chunk=cfg.vocab_chunk, axes=axes,
        row_axis='fsdp' if 'fsdp' in axes else None)

  lookup = operator.getitem
  if axes:
    lookup = functools.partial(collectives.lookup, axes=axes, dtype=model.dtype)
    stats = jax.shard_map(
        stats, axis_names={'fsdp', 'tensor'}, check_vma=False,
        in_specs=(P('fsdp'),) * 3 + (P(axes), P()), out_specs=P('fsdp'))
  hidden, _ = transformer.forward(
      params, batch.tokens[:, :length], cfg=model, remat=cfg.remat,
      implementation=cfg.attention, unroll=cfg.unroll, lookup=lookup,
      fetch=fetch)
  return stats(
      hidden, batch.tokens, batch.prompt_length,
      transformer.unembedding(params), temperature)


def _real(batch: LearnerBatch) -> Array:
  """Returns the mask [B, T] of the response's tokens."""
  return jnp.arange(batch.mask.shape[1]) < batch.response_length[:, None]


def _arrange(rows, batch, needed, cfg):
  """Splits `rows` into microbatches, the `needed` [B] ones first.

  Returns:
    The microbatches, and the order of the rows, see `microbatches.arrange`.
  """
  length = batch.prompt_length + batch.response_length
  return microbatches.arrange(
      rows, jnp.where(needed, length, 0), size=cfg.microbatch,
      lengths=cfg.lengths)


def _by_data_group(mesh, out):
  """Decorates (trees, Microbatches, anything) -> out to run per data group.

  Each data group processes its own rows, so that collectives over `data` run
  once per batch, not once per microbatch. Inside, `fsdp` and `tensor` are
  automatic axes. `out` is the PartitionSpec of the results over `data`.
  """
  cut = microbatches.Microbatches(rows=P(None, 'data'), bucket=P(), count=P())
  return functools.partial(
      jax.shard_map, mesh=mesh, axis_names={'data'}, check_vma=False,
      in_specs=(P(), cut, P()), out_specs=out)


def _score(params, batch, temperature, frozen=None, *, cfg, mesh, **static):
  """Computes `Learner.score`."""
  _check(batch, cfg)

  @_by_data_group(mesh, P(None, 'data'))
  def scores(trees, cut, temperature):
    def logprobs(micro, length):
      x = _stats(*trees, micro, temperature, length, cfg=cfg,
                 entropy=False, **static).logprobs
      return jnp.pad(x, ((0, 0), (0, cfg.max_response - x.shape[1])))

    return microbatches.fold(
        logprobs, lambda i, out, x: out.at[i].set(x),
        jnp.zeros(cut.rows.mask.shape, jnp.float32), cut, lengths=cfg.lengths)

  cut, order = _arrange(batch, batch, batch.response_length > 0, cfg)
  out = scores((params, frozen), cut, temperature).reshape(batch.mask.shape)
  return jnp.where(_real(batch), jnp.zeros_like(out).at[order].set(out), 0.0)


def _loss(params, frozen, rows, loss, length, *, cfg, **static):
  """Computes `loss.weighted_sum` of a microbatch.

  `rows` are a LearnerBatch and the weights of its tokens.
  """
  batch, weights = rows
  now = _stats(
      params, frozen, batch, loss.temperature, length, cfg=cfg, **static)
  return loss_lib.weighted_sum(
      now.logprobs, now.entropy, batch, weights, loss,
      objective=cfg.objective, correction=cfg.importance,
      kl_estimator=cfg.kl_estimator)


def _gradient(params, frozen, batch, loss, *, cfg, mesh, specs, **static):
  """Computes the gradient of the whole batch's loss, metrics and row facts."""
  batch = batch.replace(mask=batch.mask & _real(batch))
  weights = policy_losses.token_weights(
      batch.mask, cfg.aggregation, where=batch.response_length > 0,
      budget=loss.budget)

  @_by_data_group(mesh, (P(), P(), P(None, 'data')))
  def accumulate(trees, cut, loss):
    def differentiate(rows, length):
      grads, (sums, maxima, facts) = jax.grad(_loss, has_aux=True)(
          *trees, rows, loss, length, cfg=cfg, **static)
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

  cut, order = _arrange((batch, weights), batch, jnp.any(batch.mask, 1), cfg)
  (grads, sums), maxima, facts = accumulate((params, frozen), cut, loss)
  totals = {name: sums.pop(name) for name in ('loss', 'policy_loss', 'tokens')}
  tokens = jnp.maximum(totals['tokens'], 1.0)
  means = jax.tree.map(lambda x: x / tokens, sums)
  rows = jax.tree.map(
      lambda x: jnp.zeros(len(order)).at[order].set(x.reshape(-1)), facts)
  return grads, {**totals, **means, **maxima}, rows


def _update(state, batch, loss, frozen=None, *, optimizer, cfg, **static):
  """Computes `Learner.update`."""
  _check(batch, cfg)
  grads, metrics, rows = _gradient(
      state.params, frozen, batch, loss, cfg=cfg, **static)
  norm = optax.tree.norm(grads)
  updates, opt_state = optimizer.transform.update(
      grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  finite = jnp.isfinite(metrics['loss']) & jnp.isfinite(norm)
  # A batch without trained tokens changes nothing: no momentum, no decay.
  taken = finite & (metrics['tokens'] > 0)
  params, opt_state = jax.tree.map(
      functools.partial(jnp.where, taken), (params, opt_state),
      (state.params, state.opt_state))
  dropped = 1 - finite.astype(jnp.int32)
  new = TrainState(
      step=state.step + taken, params=params, opt_state=opt_state,
      skipped=state.skipped + dropped,
      skipped_in_row=(state.skipped_in_row + 1) * dropped)
  metrics.update(
      grad_norm=norm, learning_rate=optimizer.schedule(state.step),
      skipped=new.skipped, skipped_in_row=new.skipped_in_row)
  metrics = {k: jnp.asarray(v, jnp.float32) for k, v in metrics.items()}
  return new, {**metrics, 'rows': rows} if rows else metrics


def _check(batch: LearnerBatch, cfg: LearnerConfig):
  """Raises ValueError if the batch's sizes do not match the config."""
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
        skipped=zero, skipped_in_row=zero)

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
          functools.partial(_score, **static), out_shardings=whole),
      update=jax.jit(
          functools.partial(
              _update, optimizer=optimizer, specs=specs, **static),
          donate_argnums=0, out_shardings=(layout, whole)))
