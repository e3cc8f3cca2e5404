"""Makes the learner's programs: `score` tokens, `update` the players.

Both process rows in microbatches that `packing` plans on the host.
"""

import dataclasses
import functools
from typing import Any, Callable, Mapping, NamedTuple, Optional

import jax
import jax.numpy as jnp

from jaxrl_llm import sharding
from jaxrl_llm.base.declared import AUTO
from jaxrl_llm.learner import actor as actor_lib
from jaxrl_llm.learner import packing
from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.learner import reward as reward_lib
from jaxrl_llm.learner import score as score_lib
from jaxrl_llm.learner import teacher as teacher_lib
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.learner.forward import Net, Setting
from jaxrl_llm.learner.optimizer import Optimizer
from jaxrl_llm.learner.options import (
  ACTOR,
  LossChoices,
  PassOptions,
  PLAYERS,
  POLICY,
  REWARD,
)
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
    teacher: form of the KL to a teacher; None without one.
  """
  tokens: int
  max_prompt: int
  max_response: int
  samples: int = 1
  whole: bool = True
  row_facts: bool = False
  rejection: Optional[rejection_lib.Rejection] = None
  actor: Optional[actor_lib.Training] = None
  teacher: Optional[teacher_lib.Distillation] = None


class LearnerPrograms(NamedTuple):
  """The jitted programs of the players: the policy, perhaps an actor.

  A state is a dictionary: name of a player to its TrainState. `frozen` are the
  parameters of the policy that are not trained, or None.

  Attributes:
    state: a state of jax.ShapeDtypeStruct, with layouts.
    init: (name of each player to its parameters) -> state, which holds these
      parameters.
    plans: (B) -> a packing.Plan without rows for each program of B rows.
    plan: (prompt [B], prompt_length [B], length [B]) -> packing.Plan in NumPy,
      of rows with equal numbers for equal prompts; the response's length is 0
      for a row that is not needed.
    score: (params, batch, plan, loss, frozen=None) -> score.Scores of the
      response tokens. `params` are name of a player to its parameters, of the
      policy or of all. `loss` is LossParams.
    update: (state, batch, plan, loss, frozen=None, others=None) ->
      (state, metrics). The plan is of the rows that have a token in the loss.
      Takes one optimiser step; the input state is donated. `others` are
      parameters without a gradient, by name: forward.BEHAVIOUR, those that
      wrote the rows, where the rejection needs them; 'teacher', if that is
      another model.
      Metrics are [] float32; metrics['objective'] has the objective's own, if
      it returns some. With `LearnerConfig.row_facts`, metrics['rows'] has
      'entropy' and 'clip_share' of each row [B], means over its trained tokens
      (0 without one).
  """
  state: Any
  init: Callable[..., Any]
  plans: Callable[[int], list[packing.Plan]]
  plan: Callable[..., packing.Plan]
  score: Callable[..., score_lib.Scores]
  update: Callable[..., tuple[Any, dict[str, Array]]]


class PlayerModel(NamedTuple):
  """Model of a player.

  Attributes:
    model: its architecture.
    optimizer: from `make_optimizer`; None for a player that stays as it is.
    trained: shapes of the trained parameters; None for all parameters.
    compose: (trained, frozen) -> all parameters; these are the trained ones,
      if it is not given.
  """
  model: ModelConfig
  optimizer: Optional[Optimizer] = None
  trained: Any = None
  compose: Callable[[Any, Any], Any] = lambda params, frozen: params


def make_learner(
    players: Mapping[str, PlayerModel], cfg: LearnerConfig, *,
    mesh: Optional[jax.sharding.Mesh] = None) -> LearnerPrograms:
  """Makes the programs for players and a config.

  Args:
    players: 'policy'; 'actor', if it is another model, which learns as
      `cfg.actor` says; 'teacher', which has no state, if it is another model.
    cfg: static settings.
    mesh: with axes data, fsdp and tensor; the rows of a batch are split over
      'data' and 'fsdp'. None for the first device only.

  Returns:
    The jitted programs. New values in their arguments never recompile them.

  Raises:
    ValueError: the config's attention is unknown.
  """
  mesh = mesh or sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  model = players[POLICY].model
  cfg = _resolved(cfg, model, mesh)
  players = {name: player if player.trained is not None else player._replace(
      trained=_shapes(player.model)) for name, player in players.items()}

  def init(params):
    states = {name: _init(tree, players[name].optimizer)
              for name, tree in params.items()}
    if cfg.rejection:
      states[POLICY] = states[POLICY].replace(calibration=rejection_lib.init())
    if ACTOR in states:
      states[ACTOR] = states[ACTOR].replace(
          distill=jnp.asarray(cfg.actor.distill, jnp.float32))
    return states

  # Shapes and layouts come first: parameters that do not fit on one device are
  # never made there.
  state = jax.eval_shape(init, {
      name: players[name].trained for name in PLAYERS if name in players})
  layout = {
      name: sharding.optimizer_shardings(
          one, one.params, sharding.TRAIN_RULES, mesh)
      for name, one in state.items()}
  optimizers = {name: player.optimizer for name, player in players.items()
                if player.optimizer}
  setting = Setting(
      cfg, mesh, {name: _net(mesh, player) for name, player in players.items()},
      optimizers, {
          name: jax.tree.map(lambda place: place.spec, layout[name].params)
          for name in optimizers})
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


class RewardPrograms(NamedTuple):
  """The jitted program of a reward model.

  Attributes:
    plan: as `LearnerPrograms.plan`, of the rows of `scores`.
    scores: (params, batch, plan) -> [B] float32, see `reward.scores`.
    closing: tokens that end a chat behind its last answer, from the answer's
      stop token on.
    padding: token that fills rows up, -1 for none. At the end of a response it
      has no score, as in transformers' classifiers: models whose padding is
      their stop token have learned the score of the token before.
    columns: most tokens of a response there, with the one behind it.
  """
  plan: Callable[..., packing.Plan]
  scores: Callable[..., Array]
  closing: tuple[int, ...]
  padding: int
  columns: int


def make_reward(
    model: ModelConfig, cfg: LearnerConfig, *, closing: tuple[int, ...] = (),
    padding: int = -1,
    mesh: Optional[jax.sharding.Mesh] = None) -> RewardPrograms:
  """Makes the program of a reward model.

  Args:
    model: its architecture.
    cfg: the learner's; what concerns an update alone is not used.
    closing, padding: see `RewardPrograms`.
    mesh: as for `make_learner`.
  """
  mesh = mesh or sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  columns = cfg.max_response + max(len(closing), 1)
  cfg = _resolved(dataclasses.replace(
      cfg, max_response=columns, teacher=None), model, mesh)
  setting = Setting(cfg, mesh, {REWARD: _net(mesh, PlayerModel(
      model, trained=_shapes(model)))}, {}, {})
  plan, plans = _planning(cfg, model, sharding.data_shards(mesh))
  return RewardPrograms(plan, Sized(jax.jit(
      functools.partial(reward_lib.scores, setting=setting),
      out_shardings=sharding.rows(mesh)), plans), closing, padding, columns)


def _shapes(model: ModelConfig) -> Any:
  """Returns the shapes of a model's parameters."""
  return jax.eval_shape(lambda: transformer.init(jax.random.key(0), model))


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
      step=zero, params=params,
      opt_state=optimizer.transform.init(params) if optimizer else (),
      skipped=zero, skipped_in_row=zero)


def _planning(cfg, model, shards):
  """Makes `LearnerPrograms.plan` and `LearnerPrograms.plans`."""
  # Of a number of rows always the same: a plan of another size would compile.
  @functools.cache
  def sizes(rows):
    return packing.choose(
        tokens=cfg.tokens, max_prompt=max(
            cfg.max_prompt, cfg.teacher.prompt_columns if cfg.teacher else 0),
        max_response=cfg.max_response, samples=cfg.samples, whole=cfg.whole,
        rows=-(-rows // shards), chunks=cfg.attention == 'xla',
        worth=_WORTH_WIDE if model.width >= _WIDE else _WORTH)

  def plan(prompt, prompt_length, length):
    return packing.plan(
        prompt, prompt_length - 1, length, shards=shards,
        sizes=sizes(len(length)))

  def plans(rows):
    return [packing.nothing(one, rows=rows, shards=shards)
            for one in sizes(rows)]

  return plan, plans


def _net(mesh, player: PlayerModel) -> Net:
  """Makes the description of a player's model."""
  # LoRA's frozen embeddings have the sampling layout.
  axes = collectives.vocabulary_axes(
      sharding.TRAIN_RULES if 'embed' in player.trained else (
          sharding.SAMPLE_RULES), mesh)
  # Left to itself, the partitioner splits the products with the weights into
  # many small ones.
  fetch = None
  if mesh.shape['fsdp'] > 1:
    fetch = collectives.gathering(sharding.TRAIN_RULES, player.model.dtype)
  return Net(player.model, player.compose, axes, fetch)
