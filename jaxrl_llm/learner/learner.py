"""Makes the learner's programs: `score` tokens, `update` the players.

Both process rows in microbatches that `packing` plans on the host.
"""

import dataclasses
import functools
from typing import Any, Callable, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import sharding
from jaxrl_llm.base.declared import AUTO
from jaxrl_llm.learner import actor as actor_lib
from jaxrl_llm.learner import packing, padding
from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.learner import score as score_lib
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.learner.forward import Net, Players, Setting
from jaxrl_llm.learner.optimizer import NONE, Optimizer
from jaxrl_llm.learner.options import LossChoices, PassOptions
from jaxrl_llm.learner.sized import Sized
from jaxrl_llm.learner.update import TrainState
from jaxrl_llm.models import attention, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sharding import collectives
from jaxrl_llm.types import Array

# Layers of a small model; the time to compile grows with the unrolled layers.
_SMALL = 4
_LOGITS_SHARE = 1 / 32  # of a GPU's memory, for the logits of a chunk
# `worth` of `packing.choose`; from a width on, a token costs far more.
_WORTH, _WORTH_WIDE, _WIDE = 256, 64, 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerConfig(LossChoices, PassOptions):
  """Static settings of the programs.

  `objective` and `importance` may be functions too. `vocab_chunk` counts tokens
  over all devices that share them.

  Attributes:
    tokens: most tokens of a microbatch on each data shard; if a row has more,
      one row.
    samples: rows with the same prompt.
    whole: whether all of them are in the same batch; if not, there is one more
      program.
    max_prompt: L.
    max_response: T.
    row_facts: whether an update also returns facts about each row.
    rejection: rejects tokens that another policy wrote; None keeps all.
    actor: how an actor that is another model learns; None without one.
  """
  tokens: int
  max_prompt: int
  max_response: int
  samples: int = 1
  whole: bool = True
  row_facts: bool = False
  rejection: Optional[rejection_lib.Rejection] = None
  actor: Optional[actor_lib.Training] = None


class LearnerPrograms(NamedTuple):
  """The jitted programs of one player, or of the policy and an actor.

  For two players, the state is a tuple of two. `frozen` are the parameters of
  the policy that are not trained, or None.

  Attributes:
    state: TrainState of jax.ShapeDtypeStruct, with layouts.
    init: (params, ...) -> TrainState, which holds these parameters.
    plans: (B) -> a packing.Plan without rows for each program of B rows.
    plan: (prompt [B], prompt_length [B], length [B]) -> packing.Plan in NumPy,
      of rows with equal numbers for equal prompts; the response's length is 0
      for a row that is not needed.
    score: (params, batch, plan, loss, frozen=None) -> score.Scores of the
      response tokens. `loss` is LossParams. For a tuple of the players'
      parameters, Scores of both.
    update: (state, batch, plan, loss, frozen=None, behaviour_params=None) ->
      (state, metrics). The plan is of the rows that have a token in the loss.
      Takes one optimiser step; the input state is donated. `behaviour_params`
      are the parameters that wrote the rows, where the rejection needs them.
      Metrics
      are [] float32; metrics['objective'] has the objective's own, if it
      returns some. With `LearnerConfig.row_facts`, metrics['rows'] has
      'entropy' and 'clip_share' of each row [B], means over its trained tokens
      (0 without one).
  """
  state: Any
  init: Callable[..., Any]
  plans: Callable[[int], list[packing.Plan]]
  plan: Callable[..., packing.Plan]
  score: Callable[..., score_lib.Scores]
  update: Callable[..., tuple[Any, dict[str, Array]]]


def _whole(params: Any, frozen: Any) -> Any:
  """Returns all parameters where all are trained."""
  del frozen
  return params


class Actor(NamedTuple):
  """Model of an actor that is trained beside the policy.

  Attributes:
    model: its architecture.
    trained: shapes of its parameters.
    optimizer: from `make_optimizer`.
  """
  model: ModelConfig
  trained: Any
  optimizer: Optimizer


def make_learner(
    model: ModelConfig,
    cfg: LearnerConfig,
    optimizer: Optimizer,
    *,
    mesh: Optional[jax.sharding.Mesh] = None,
    trained: Any = None,
    compose: Callable[[Any, Any], Any] = _whole,
    actor: Optional[Actor] = None,
) -> LearnerPrograms:
  """Makes the programs for one model, config and optimiser, or for two models.

  Args:
    model: the policy's architecture.
    cfg: static settings.
    optimizer: from `make_optimizer`.
    mesh: with axes data, fsdp and tensor; the rows of a batch are split over
      'data' and 'fsdp'. None for the first device only.
    trained: shapes of the trained parameters; None for all parameters.
    compose: (trained, frozen) -> all parameters.
    actor: the actor, if it is another model; `cfg.actor` says how it learns.

  Returns:
    The jitted programs. New values in their arguments never recompile them.

  Raises:
    ValueError: the config's attention is unknown.
  """
  mesh = mesh or sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  cfg = _resolved(cfg, model, mesh)
  if trained is None:
    trained = jax.eval_shape(
        lambda: transformer.init(jax.random.key(0), model))
  players = Players((model, trained, compose, optimizer), actor and (
      actor.model, actor.trained, _whole,
      actor.optimizer if cfg.actor.learns else NONE))

  def init(*params):
    states = players.map(
        lambda each, tree: _init(tree, each[3]), Players(*params))
    if cfg.rejection:
      states = states._replace(policy=states.policy.replace(
          calibration=rejection_lib.init()))
    if not actor:
      return states.policy
    return states.policy, states.actor.replace(
        distill=jnp.asarray(cfg.actor.distill, jnp.float32))

  # Shapes and layouts come first: parameters that do not fit on one device are
  # never made there.
  state = jax.eval_shape(init, *(
      each[1] for each in players if each is not None))
  layout = jax.tree.map(
      lambda state: sharding.optimizer_shardings(
          state, state.params, sharding.TRAIN_RULES, mesh), state,
      is_leaf=lambda x: isinstance(x, TrainState))
  setting = Setting(
      cfg, mesh, players.map(lambda each: _net(mesh, *each[:3])),
      players.map(lambda each: each[3]), Players.of(layout).map(
          lambda x: jax.tree.map(lambda place: place.spec, x.params)))
  plan, plans = _planning(cfg, model, sharding.data_shards(mesh))
  return LearnerPrograms(
      state=jax.tree.map(
          lambda x, place: jax.ShapeDtypeStruct(
              x.shape, x.dtype, sharding=place), state, layout),
      init=jax.jit(init, out_shardings=layout), plans=plans, plan=plan,
      score=Sized(jax.jit(
          functools.partial(score_lib.score, setting=setting),
          out_shardings=sharding.rows(mesh)), plans),
      # Donated: there is no room for parameters and moments twice.
      update=Sized(jax.jit(
          functools.partial(update_lib.update, setting=setting),
          donate_argnums=0,
          out_shardings=(layout, sharding.replicated(mesh))), plans))


def _resolved(cfg, model, mesh) -> LearnerConfig:
  """Returns the config with the values that devices and model decide."""
  # By the mesh, not by this host: programs are also compiled ahead of time, for
  # devices that it lacks.
  device, unroll = mesh.devices.flat[0], cfg.unroll
  if unroll is None:
    small = device.platform == 'cpu' and model.layers <= _SMALL
    unroll = model.layers if small else 1
  chunk = cfg.vocab_chunk
  if chunk is None and device.platform == 'gpu':
    # Each chunk is a pass over the unembedding and its gradient: with chunks of
    # 2,048 tokens, not 512, an update of Qwen3-1.7B on an H100 took 12% less.
    memory = (device.memory_stats() or {}).get('bytes_limit', 0)
    tokens = int(memory * _LOGITS_SHARE) // (4 * model.vocab_size)
    chunk = 1 << (tokens.bit_length() - 1) if tokens > 512 else None
  return dataclasses.replace(
      cfg, unroll=unroll, vocab_chunk=chunk, attention=attention.resolve(
          cfg.attention, device, cfg.max_prompt + cfg.max_response, model),
      remat='none' if cfg.remat == AUTO else cfg.remat)


def _init(params, optimizer) -> TrainState:
  """Returns the state of a player before the first step."""
  zero = jnp.zeros((), jnp.int32)
  return TrainState(
      step=zero, params=params, opt_state=optimizer.transform.init(params),
      skipped=zero, skipped_in_row=zero)


def _planning(cfg, model, shards):
  """Makes `LearnerPrograms.plan` and `LearnerPrograms.plans`."""
  def counted(plan, before, length):
    share = padding.real_flops(
        model, plan, before, length, max_prompt=cfg.max_prompt,
        max_response=cfg.max_response)
    return plan.replace(
        shares={**plan.shares, 'real_flops': np.float32(share)})

  # Of a number of rows always the same: a plan of another size would compile.
  @functools.cache
  def sizes(rows):
    return packing.choose(
        tokens=cfg.tokens, max_prompt=cfg.max_prompt,
        max_response=cfg.max_response, samples=cfg.samples, whole=cfg.whole,
        rows=-(-rows // shards), chunks=cfg.attention == 'xla',
        worth=_WORTH_WIDE if model.width >= _WIDE else _WORTH)

  def plan(prompt, prompt_length, length):
    before = prompt_length - 1
    return counted(packing.plan(
        prompt, before, length, shards=shards, sizes=sizes(len(length))),
                   before, length)

  def plans(rows):
    nothing = np.zeros(rows)
    return [counted(
        packing.nothing(one, rows=rows, shards=shards), nothing, nothing)
            for one in sizes(rows)]

  return plan, plans


def _net(mesh, model, trained, compose) -> Net:
  """Makes the description of a player's model."""
  # LoRA's frozen embeddings have the sampling layout.
  axes = collectives.vocabulary_axes(
      sharding.TRAIN_RULES if 'embed' in trained else sharding.SAMPLE_RULES,
      mesh)
  # Left to itself, the partitioner splits the products with the weights into
  # many small ones.
  fetch = None
  if mesh.shape['fsdp'] > 1:
    fetch = collectives.gathering(sharding.TRAIN_RULES, model.dtype)
  return Net(model, compose, axes, fetch)
