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
import optax

from jaxrl_llm import sharding
from jaxrl_llm.learner import actor as actor_lib
from jaxrl_llm.learner import forward, gradient, lists, passes, prompts
from jaxrl_llm.learner import loss as loss_lib
from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.learner import score as score_lib
from jaxrl_llm.learner.optimizer import Optimizer
from jaxrl_llm.models import attention, transformer
from jaxrl_llm.models.config import ModelConfig
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
    distill: [] lambda_distill, of an actor that is another model, or None.
  """
  step: Array
  params: Any
  opt_state: Any
  skipped: Array
  skipped_in_row: Array
  calibration: Optional[rejection_lib.Calibration] = None
  distill: Optional[Array] = None


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
  """Static settings of the programs.

  Attributes:
    microbatch: rows of a microbatch.
    max_prompt: L.
    max_response: T.
    buckets: static lengths of microbatches below the full one, by `plan`:
      'rows': tokens of a row, at most L + T; 'waves': tokens of a response, at
      most T; 'lists': tokens of a list. The model is compiled once for each, so
      use only a few.
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
    actor: how an actor that is another model learns; None without one.
    plan: one of `passes.PLANS`; see there and `LearnerBatch.prompt`.
    sizes: of 'waves' and 'lists'; set by `make`.
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
  actor: Optional[actor_lib.Training] = None
  plan: str = 'rows'
  sizes: Optional[prompts.Sizes | lists.Sizes] = None

  def __post_init__(self):
    loss_lib.check(
        self.objective, self.aggregation, self.importance, self.kl_estimator)
    if self.remat not in transformer.REMAT:
      raise ValueError(
          f'remat={self.remat!r} is not known: use one of '
          f'{", ".join(transformer.REMAT)}.')
    if self.microbatch < 1:
      raise ValueError(f'microbatch={self.microbatch} must be at least 1.')
    if self.plan not in passes.PLANS:
      raise ValueError(
          f'plan={self.plan!r} is not known: use one of '
          f'{", ".join(passes.PLANS)}.')
    if self.plan != 'rows' and self.max_prompt < 2:
      raise ValueError(
          f'plan={self.plan!r} needs max_prompt of at least 2: responses begin '
          'with the last token of their prompt.')
    if self.plan == 'lists':
      return  # `lists.Sizes` checks the buckets.
    least, full, name = (
        (1, self.max_response, '') if self.plan == 'waves' else
        (2, self.max_prompt + self.max_response, 'max_prompt + '))
    if self.lengths[0] < least or self.lengths[-1] > full:
      raise ValueError(
          f'buckets={self.buckets} must lie between {least} and '
          f'{name}max_response = {full}.')

  @property
  def lengths(self) -> tuple[int, ...]:
    """All static lengths, ascending; every row fits into the last.

    They are those of whole rows; in waves of responses; or of lists.
    """
    if self.plan == 'lists':
      return self.sizes.lengths
    full = self.max_response + self.max_prompt * (self.plan == 'rows')
    return tuple(sorted({*self.buckets, full}))


class Learner(NamedTuple):
  """The jitted programs of one player, or of the policy and an actor.

  For two players, the state is a tuple of two. `frozen` are the parameters of
  the policy that are not trained, or None.

  Attributes:
    state: TrainState of jax.ShapeDtypeStruct, with layouts.
    init: (params, ...) -> TrainState, which holds these parameters.
    score: (params, batch, loss, frozen=None) -> score.Scores of the response
      tokens. `loss` is LossParams. For a tuple of the players' parameters,
      Scores of both.
    update: (state, batch, loss, frozen=None, writer=None) -> (state, metrics).
      Takes one optimiser step; the input state is donated. `writer` are the
      parameters that wrote the rows, where the rejection needs them. Metrics
      are [] float32. With `LearnerConfig.row_facts`, metrics['rows'] has
      'entropy' and 'clip_share' of each row [B], means over its trained tokens
      (0 without one).
  """
  state: Any
  init: Callable[..., Any]
  score: Callable[..., score_lib.Scores]
  update: Callable[..., tuple[Any, dict[str, Array]]]


def _whole(params: Any, frozen: Any) -> Any:
  """Returns all parameters where all are trained."""
  del frozen
  return params


def _update(
    state, batch, loss, frozen=None, writer=None, *, optimizers, cfg, mesh,
    nets, specs):
  """Computes `Learner.update`."""
  forward.check(batch, cfg)
  states = forward.as_tuple(state)
  policy, actor = states[0], states[-1]
  params = tuple(state.params for state in states)
  grads, metrics, rows, calibration = gradient.of_batch(
      params, (frozen, None)[:len(states)], writer, batch, loss,
      update=policy.step + policy.skipped, calibration=policy.calibration,
      distill=actor.distill, cfg=cfg, mesh=mesh, nets=nets, specs=specs)
  norms = [optax.tree.norm(tree) for tree in grads]
  finite = jnp.isfinite(metrics['loss'] + metrics.get('actor_loss', 0.0)
                        + sum(norms))
  # A batch without trained tokens changes nothing: no momentum, no decay.
  some = finite & (metrics['tokens'] > 0)
  taken = [some & (metrics.get('obrs_empty', 0.0) == 0), some][:len(states)]
  dropped = 1 - finite.astype(jnp.int32)
  new = tuple(
      _descend(*args, dropped) for args in zip(
          states, grads, optimizers, taken))
  metrics.update(
      grad_norm=norms[0], learning_rate=optimizers[0].schedule(policy.step),
      skipped=new[0].skipped, skipped_in_row=new[0].skipped_in_row)
  new = (new[0].replace(calibration=calibration), *new[1:])
  if len(states) > 1:
    metrics.update(
        actor_grad_norm=norms[1], lambda_distill=actor.distill,
        actor_learning_rate=optimizers[1].schedule(actor.step))
    distill = actor_lib.controlled(
        actor.distill, metrics['actor_kl'], loss.actor, cfg.actor)
    new = new[0], new[1].replace(
        distill=jnp.where(some, distill, actor.distill))
  metrics = {k: jnp.asarray(v, jnp.float32) for k, v in metrics.items()}
  return (new if isinstance(state, tuple) else new[0]), (
      {**metrics, 'rows': rows} if rows else metrics)


def _descend(state, grads, optimizer, taken, dropped):
  """Takes the optimiser step of a player, if `taken`."""
  updates, opt_state = optimizer.transform.update(
      grads, state.opt_state, state.params)
  params, opt_state = jax.tree.map(
      functools.partial(jnp.where, taken),
      (optax.apply_updates(state.params, updates), opt_state),
      (state.params, state.opt_state))
  return state.replace(
      step=state.step + taken, params=params, opt_state=opt_state,
      skipped=state.skipped + dropped,
      skipped_in_row=(state.skipped_in_row + 1) * dropped)


class Actor(NamedTuple):
  """Model of an actor that is trained beside the policy.

  Attributes:
    model: its architecture.
    trained: shapes of its parameters.
    optimizer: from `optimizer.make`.
  """
  model: ModelConfig
  trained: Any
  optimizer: Optimizer


def make(
    model: ModelConfig,
    cfg: LearnerConfig,
    optimizer: Optimizer,
    *,
    mesh: Optional[jax.sharding.Mesh] = None,
    trained: Any = None,
    compose: Callable[[Any, Any], Any] = _whole,
    actor: Optional[Actor] = None,
) -> Learner:
  """Makes the programs for one model, config and optimiser, or for two models.

  Args:
    model: the policy's architecture.
    cfg: static settings.
    optimizer: from `optimizer.make`.
    mesh: see `sharding`; the rows of a microbatch are split over 'data' and
      'fsdp'. None for the first device only.
    trained: shapes of the trained parameters; None for all parameters.
    compose: (trained, frozen) -> all parameters.
    actor: the actor, if it is another model; `cfg.actor` says how it learns.

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
  rows = cfg.microbatch // shards
  if cfg.plan == 'waves':
    if mesh.shape['fsdp'] > 1:
      raise ValueError(
          f"plan='waves' needs mesh.fsdp=1, not {mesh.shape['fsdp']}: a pass "
          "over the prompts alone would gather all layers' weights.")
    cfg = dataclasses.replace(cfg, sizes=prompts.Sizes.of(
        rows, cfg.max_prompt, cfg.lengths))
  if cfg.plan == 'lists':
    cfg = dataclasses.replace(cfg, sizes=lists.Sizes.of(
        rows, cfg.max_prompt, cfg.max_response, cfg.buckets))
  cfg = dataclasses.replace(
      cfg, attention=attention.resolve(
          cfg.attention, mesh.devices.flat[0].platform,
          cfg.max_prompt + cfg.max_response))
  if trained is None:
    trained = jax.eval_shape(
        lambda: transformer.init(jax.random.key(0), model))
  players = [(model, compose, trained, optimizer)]
  if actor:
    players.append((actor.model, _whole, actor.trained, actor.optimizer))
  nets, _, shapes, optimizers = zip(*(
      (_net(mesh, *player), *player[1:]) for player in players))

  def init(*params):
    zero = jnp.zeros((), jnp.int32)
    states = [
        TrainState(
            step=zero, params=tree, opt_state=one.transform.init(tree),
            skipped=zero, skipped_in_row=zero)
        for tree, one in zip(params, optimizers)]
    if cfg.rejection:
      states[0] = states[0].replace(calibration=rejection_lib.init())
    if not actor:
      return states[0]
    return states[0], states[1].replace(
        distill=jnp.asarray(cfg.actor.distill, jnp.float32))

  state = jax.eval_shape(init, *shapes)
  layout = jax.tree.map(
      lambda state: sharding.optimizer_shardings(
          state, state.params, sharding.TRAIN_RULES, mesh), state,
      is_leaf=lambda x: isinstance(x, TrainState))
  whole = sharding.replicated(mesh)
  specs = tuple(
      jax.tree.map(lambda place: place.spec, player.params)
      for player in forward.as_tuple(layout))
  return Learner(
      state=jax.tree.map(
          lambda x, place: jax.ShapeDtypeStruct(
              x.shape, x.dtype, sharding=place), state, layout),
      init=jax.jit(init, out_shardings=layout),
      score=jax.jit(
          functools.partial(score_lib.score, cfg=cfg, mesh=mesh, nets=nets),
          out_shardings=sharding.rows(mesh)),
      update=jax.jit(
          functools.partial(
              _update, optimizers=optimizers, cfg=cfg, mesh=mesh, nets=nets,
              specs=specs),
          donate_argnums=0, out_shardings=(layout, whole)))


def _net(mesh, model, compose, trained, _) -> forward.Net:
  """Makes the description of a player's model."""
  axes = collectives.vocabulary_axes(
      sharding.TRAIN_RULES if 'embed' in trained else sharding.SAMPLE_RULES,
      mesh)
  fetch = None
  if mesh.shape['fsdp'] > 1:
    fetch = collectives.gathering(sharding.TRAIN_RULES, model.dtype)
  return forward.Net(model, compose, axes, fetch)
