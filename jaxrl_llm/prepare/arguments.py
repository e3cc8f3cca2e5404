"""Arguments of a training step's programs, as shapes with shardings."""

import functools
import math
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm import sharding
from jaxrl_llm.learner import packing
from jaxrl_llm.learner.forward import BEHAVIOUR
from jaxrl_llm.learner.options import FROZEN, POLICY, REWARD
from jaxrl_llm.learner.update import LossParams
from jaxrl_llm.loop import scores
from jaxrl_llm.prepare import choices, methods, programs, sft_data
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.types import LearnerBatch, Prompts, Requests


class Arguments(NamedTuple):
  """Arguments of the programs of a step, as jax.ShapeDtypeStruct.

  Attributes:
    state: name of each player to its TrainState.
    frozen: parameters that are not trained, or None.
    anchors: column of each frozen player's log-probs to its parameters.
    weights: all parameters that write the rows, in the sampling layout.
    generate: arguments of the sampler after `weights`.
    batch: rows of one optimiser step.
    plan: `packing.Plan` of full rows of one optimiser step.
    scored: rows of a step for `score`.
    scored_plan: of these.
    others: parameters without a gradient, by name, or None.
    loss: hyperparameters of the loss.
    reward: parameters of the reward model, or None.
  """
  state: Any
  frozen: Any
  anchors: dict[str, Any]
  weights: Any
  generate: tuple
  batch: LearnerBatch
  plan: packing.Plan
  scored: LearnerBatch
  scored_plan: packing.Plan
  others: Any
  loss: LossParams
  reward: Any = None


def abstract(made: programs.Programs) -> Arguments:
  """Returns shape, dtype and sharding of all arguments in a training step."""
  config, state = made.config, made.learner.state
  lora = config.lora.rank > 0
  anchors = {}
  if 'anchor_logprobs' in made.needs.columns:
    # With LoRA, the anchor is the frozen model without adapters, unless SFT
    # has trained them.
    anchors['anchor_logprobs'] = {'layers': {}} if lora and not (
        config_lib.sft_of_lora(config)) else state[POLICY].params
  others = {}
  if made.needs.behaviour_params:
    others[BEHAVIOUR] = state[made.rollout_sampler.player].params
  frozen = {name: made.players[name].policy.stored
            for name in FROZEN if name in made.players}
  reward = frozen.pop(REWARD, None)
  others |= frozen
  number = jax.ShapeDtypeStruct(
      (), jnp.float32, sharding=sharding.replicated(made.learner_mesh))
  updated, scored = methods.minibatch_rows(config), made.scored_rows
  return Arguments(
      state=state,
      frozen=sharding.abstract_params(
          made.policy.shapes, sharding.SAMPLE_RULES, made.mesh,
          made.model.dtype) if lora else None,
      anchors=anchors, weights=made.rollout_sampler.weights.result,
      generate=_generate(made),
      batch=_batch(made, updated, made.needs.updated),
      plan=on_devices(made, full_plan(made, updated)),
      scored=_batch(made, scored, made.needs.scored),
      scored_plan=on_devices(made, full_plan(made, scored)),
      others=others or None,
      loss=jax.tree.map(lambda _: number, choices.loss_params(config)),
      reward=reward)


def _generate(made: programs.Programs) -> tuple:
  """Returns the arguments of the sampler after the weights."""
  config, mesh, sampler = made.config, made.mesh, made.rollout_sampler.sampler
  rows = functools.partial(
      jax.ShapeDtypeStruct, dtype=jnp.int32, sharding=sharding.rows(mesh))
  scalar = functools.partial(
      jax.ShapeDtypeStruct, (), sharding=sharding.replicated(mesh))
  shards = sharding.data_shards(mesh)
  prompts = shards * sampler.prompts_per_shard
  requests = Requests(*[rows((shards * sampler.requests_per_shard,))] * 3)
  continues = sampler.sampler.continues
  if continues:
    number, length = requests.prompt, config.max_response
    requests = requests.replace(
        done=number, tokens=rows((*number.shape, length)), birth=number,
        match=sampler.sampler.stop_texts and number)
  return (
      Queue(Prompts(rows((prompts, config.max_prompt)), rows((prompts,)),
                    rows((prompts,))),
            requests, rows((shards,)),
            rows((shards,)) if continues else None),
      scalar(jax.eval_shape(lambda: jax.random.key(0)).dtype),
      jax.tree.map(lambda x: scalar(x.dtype), SamplingParams()),
      scalar(jnp.int32))


def _batch(
    made: programs.Programs, rows: int, columns: dict[str, Any],
    more: int = 0) -> LearnerBatch:
  """Returns a batch for `update`, or for `score`, which fills the channels.

  Args:
    made: programs and config.
    rows: B.
    columns: that it has beside those of all batches.
    more: tokens of a response beyond its most. `tokens` has no column for the
      last of them, which no program reads.
  """
  place, axes = sharding.rows(made.learner_mesh), made.needs.axes
  return LearnerBatch.free(
      rows, {**axes, 'S': axes['S'] + max(more - 1, 0), 'T': axes['T'] + more},
      columns, lambda shape, _, kind: (
          jax.ShapeDtypeStruct(shape, kind, sharding=place)))


def on_devices(
    made: programs.Programs, tree: Any,
    layout: Callable[..., Any] = sharding.replicated) -> Any:
  """Returns shape, dtype and layout of arrays on the learner's devices."""
  place = layout(made.learner_mesh)
  return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree)


def size(tree: Any) -> int:
  """Returns the bytes on each device of a tree of shapes with shardings."""
  return sum(
      math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
      for x in jax.tree.leaves(tree))


def full_plan(
    made: programs.Programs, rows: int, reward: bool = False) -> packing.Plan:
  """Plans the microbatches of groups of full responses to full prompts.

  Args:
    made: programs and config.
    rows: of the groups.
    reward: whether for the reward model, not for the players that learn.
  """
  config = made.config
  group = np.arange(rows) // config.samples_per_prompt
  if reward:
    return made.reward.plan(group, np.full(rows, config.max_prompt), np.full(
        rows, made.reward.columns))
  return made.learner.plan(
      group, np.full(rows, methods.prompt_columns(config)),
      np.full(rows, config.max_response))


def _reward(made: programs.Programs, x: Arguments) -> Any:
  """Lowers the scores of the reward model, for full rows."""
  rows = made.scored_rows
  return made.reward.scores.lower(
      x.reward, _batch(
          made, rows, {}, made.reward.columns - made.config.max_response),
      on_devices(made, full_plan(made, rows, reward=True)))


def _sft(made: programs.Programs) -> Any:
  """Lowers the update of supervised fine-tuning, for full rows."""
  config, limits = made.config, sft_data.limits_of(made.config)
  learner, rows = programs.sft_learner(made, limits), config.sft.batch
  batch = sft_data.Data(limits, lambda step: [], rows, 1).batch([])
  x = abstract(made)
  plan = learner.plan(
      np.arange(rows), np.full(rows, limits.max_prompt),
      np.full(rows, limits.max_response))
  return learner.update.lower(
      learner.state, on_devices(made, batch, sharding.rows),
      on_devices(made, plan), jax.tree.map(
          lambda _: x.loss.kl_coef, choices.supervised_params(config)),
      x.frozen if config_lib.sft_of_lora(config) else None)


def lowered(made: programs.Programs) -> dict[str, Callable[[], Any]]:
  """Returns a function for each phase that lowers its program.

  The phases are the programs that `train.take_step` calls, in its order:
  'reshard' (training weights to sampling weights), 'sample', 'reward' with a
  reward model, 'score' if a step needs log-probs of other policies, and
  'update'. Two smaller programs of LoRA are left out: the scaling of the
  adapters before 'reshard', and 'score' of the frozen model alone if 'score'
  with adapters is also needed. If LoRA's frozen weights are quantised,
  'reshard' is the program that does it, and that of the adapters is left out
  too.

  'sft', the update of supervised fine-tuning, comes first if the run has it. A
  run without a step has no other phase.
  """
  x, learner = abstract(made), made.learner
  before = {'sft': lambda: _sft(made)} if (
      config_lib.has_sft(made.config)) else {}
  if before and not made.config.steps:
    return before
  phases = dict(
      before, reshard=made.rollout_sampler.weights.lower,
      sample=lambda: made.rollout_sampler.sampler.generate.lower(
          x.weights, *x.generate))
  if made.reward:
    phases['reward'] = lambda: _reward(made, x)
  calls = scores.scoring(made.needs.columns, x.state, x.anchors)
  if calls:
    phases['score'] = lambda: learner.score.lower(
        [*calls.values()][0], x.scored, x.scored_plan, x.loss, x.frozen)
  phases['update'] = lambda: learner.update.lower(
      x.state, x.batch, x.plan, x.loss, x.frozen, x.others)
  return phases
