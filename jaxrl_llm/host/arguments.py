"""Arguments of a training step's programs, as shapes with shardings."""

import functools
import math
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import sharding
from jaxrl_llm.host import programs, rounds
from jaxrl_llm.learner import actor as actor_lib
from jaxrl_llm.learner import forward, packing
from jaxrl_llm.learner import loss as loss_lib
from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.types import LearnerBatch, Prompts, Requests


class Arguments(NamedTuple):
  """Arguments of the programs of a step, as jax.ShapeDtypeStruct.

  Attributes:
    state: TrainState, or those of the policy and the actor.
    frozen: parameters that are not trained, or None.
    anchor: parameters of the KL penalty's frozen model, or None.
    weights: all parameters that write the rows, in the sampling layout.
    generate: arguments of the sampler after `weights`.
    batch: rows of one optimiser step.
    plan: `packing.Plan` of full rows of one optimiser step.
    scored: rows of a step for `score`.
    scored_plan: of these.
    writer: parameters that wrote the rows, or None.
    loss: hyperparameters of the loss.
  """
  state: Any
  frozen: Any
  anchor: Any
  weights: Any
  generate: tuple
  batch: LearnerBatch
  plan: packing.Plan
  scored: LearnerBatch
  scored_plan: packing.Plan
  writer: Any
  loss: loss_lib.LossParams


def abstract(made: programs.Programs) -> Arguments:
  """Returns shape, dtype and sharding of all arguments in a training step."""
  config, mesh, policy = made.config, made.mesh, made.policy
  kind = made.model.dtype

  split, whole = (
      layout(made.learner_mesh)
      for layout in (sharding.rows, sharding.replicated))

  def array(*shape, dtype=jnp.int32, place=split):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

  state = made.learner.state
  players = forward.Players.of(state)
  frozen = None
  if config.lora.rank:
    frozen = sharding.abstract_params(
        policy.shapes, sharding.SAMPLE_RULES, mesh, kind)
  shards, sampler = sharding.data_shards(mesh), made.writer.sampler
  p = shards * sampler.prompts_per_shard
  r = shards * sampler.requests_per_shard
  scalar = functools.partial(array, place=sharding.replicated(mesh))
  asked = functools.partial(array, place=sharding.rows(mesh))
  key = jax.eval_shape(lambda: jax.random.key(0))
  generate = (
      Queue(Prompts(asked(p, config.max_prompt), asked(p), asked(p)),
            Requests(asked(r), asked(r), asked(r)), asked(shards)),
      scalar(dtype=key.dtype),
      jax.tree.map(lambda x: scalar(dtype=x.dtype), SamplingParams()),
      scalar())

  scored = programs.needs_old_logprobs(config, made.stages)
  penalised = programs.needs_anchor(config)
  anchor = None
  if penalised:  # with LoRA, the anchor is the frozen model without adapters
    anchor = {'layers': {}} if config.lora.rank else players.policy.params

  rejection, actor = rejection_lib.of(config), actor_lib.of(config)

  def rows(count, old, anchor, top, updated):
    tokens = functools.partial(
        array, count, config.max_response, dtype=jnp.float32)
    likeliest = functools.partial(
        array, count, rejection.top_k, config.max_response) if top else (
            lambda **_: None)
    return LearnerBatch(
        tokens=array(count, config.max_prompt + config.max_response),
        prompt_length=array(count), response_length=array(count),
        mask=tokens(dtype=bool), behaviour_logprobs=tokens(),
        advantages=array(count, dtype=jnp.float32),
        old_logprobs=tokens() if old else None,
        anchor_logprobs=tokens() if anchor else None,
        top_ids=likeliest(), top_logprobs=likeliest(dtype=jnp.float32),
        z=tokens() if updated and rejection and rejection.scores_z else None,
        identity=array(count, 3, dtype=jnp.uint32) if (
            updated and rejection) else None,
        actor_logprobs=tokens() if old and actor and actor.ppo else None)

  def plan(rows):
    return on_devices(full_plan(made, rows), made)

  number = array(dtype=jnp.float32, place=whole)
  loss = jax.tree.map(lambda _: number, loss_lib.params(config))
  return Arguments(
      state=state, frozen=frozen, anchor=anchor,
      weights=made.writer.weights,
      generate=generate,
      batch=rows(
          rounds.minibatch_rows(config), scored, penalised,
          top=rejection and rejection.needs_top, updated=True),
      scored=rows(
          programs.scored_rows(made), False, False,
          top=rejection and rejection.scores_z and rejection.z == 'topk',
          updated=False),
      plan=plan(rounds.minibatch_rows(config)),
      scored_plan=plan(programs.scored_rows(made)),
      writer=players.writer.params if programs.keeps_writer(
          config, made.stages) else None,
      loss=loss)


def on_devices(plan: packing.Plan, made: programs.Programs) -> packing.Plan:
  """Returns shape, dtype and sharding of a plan's arrays."""
  whole = sharding.replicated(made.learner_mesh)
  return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), plan)


def size(tree: Any) -> int:
  """Returns the bytes on each device of a tree of shapes with shardings."""
  return sum(
      math.prod(x.sharding.shard_shape(x.shape)) * _item(x.dtype)
      for x in jax.tree.leaves(tree))


def _item(dtype) -> int:
  return 8 if jax.dtypes.issubdtype(
      dtype, jax.dtypes.prng_key) else np.dtype(dtype).itemsize


def full_plan(made: programs.Programs, rows: int) -> packing.Plan:
  """Plans the microbatches of groups of full responses to full prompts."""
  config = made.config
  return made.learner.plan(
      np.arange(rows) // config.samples_per_prompt,
      np.full(rows, config.max_prompt), np.full(rows, config.max_response))


def lowered(made: programs.Programs) -> dict[str, Callable[[], Any]]:
  """Returns a function for each phase that lowers its program.

  The phases are the programs that `train.take_step` calls, in its order:
  'reshard' (training weights to sampling weights), 'sample', 'score' if a step
  needs log-probs of other policies, and 'update'. Two smaller programs of LoRA
  are left out: the scaling of the adapters before 'reshard', and 'score' of the
  frozen model alone if 'score' with adapters is also needed. If LoRA's frozen
  weights are quantised, 'reshard' is the program that does it, and that of the
  adapters is left out too.
  """
  x, learner = abstract(made), made.learner
  phases = dict(
      reshard=made.writer.lower_to_sampling,
      sample=lambda: made.writer.sampler.generate.lower(
          x.weights, *x.generate))
  if x.batch.old_logprobs is not None or x.anchor is not None:
    players = forward.Players.of(x.state).map(lambda player: player.params)
    if x.batch.actor_logprobs is None and x.batch.z is None:
      players = players.policy
    else:
      players = players.like(x.state)
    phases['score'] = lambda: learner.score.lower(
        x.anchor if x.batch.old_logprobs is None else players, x.scored,
        x.scored_plan, x.loss, x.frozen)
  phases['update'] = lambda: learner.update.lower(
      x.state, x.batch, x.plan, x.loss, x.frozen, x.writer)
  return phases
