"""The device programs of a run, and the shapes that they are called with.

`make` knows neither task nor files, and needs no device that is really there:
`experiment.build` runs what it returns, `launch/compile_check.py` compiles it
ahead of time for machines that are elsewhere.
"""

import functools
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jaxrl_llm import learner as learner_lib
from jaxrl_llm import loss as loss_lib
from jaxrl_llm import optimizer as optimizer_lib
from jaxrl_llm import policy as policy_lib
from jaxrl_llm import sharding
from jaxrl_llm.models import attention, hf
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.types import LearnerBatch, Prompts, Requests


class Sampler(NamedTuple):
  """The sampler at the sizes of one training step.

  Attributes:
    generate: `generate.sharded_generate` on the mesh, jitted.
    sampler: its static choices; `slots` is no more than the requests.
    requests_per_shard: rows set aside on each data shard.
    prompts_per_shard: distinct prompts that fit on each.
  """
  generate: Callable[..., Any]
  sampler: generate_lib.SamplerConfig
  requests_per_shard: int
  prompts_per_shard: int


# Platforms of attentions that are not for every one.
_NEEDS = {'cudnn': 'gpu', 'splash': 'tpu'}


class Programs(NamedTuple):
  """What runs on the devices.

  Attributes:
    config: of the run.
    mesh: (data, fsdp, tensor).
    model: the policy's architecture.
    policy: what to do with its parameters.
    learner: `score` and `update` of the RL phase.
    sampler: see there.
  """
  config: ConfigDict
  mesh: jax.sharding.Mesh
  model: ModelConfig
  policy: policy_lib.Policy
  learner: learner_lib.Learner
  sampler: Sampler


def learner_config(
    config: ConfigDict, **changes: Any) -> learner_lib.LearnerConfig:
  """The learner's static choices, with `changes` made to them."""
  loss, learner = config.loss, config.learner
  return learner_lib.LearnerConfig(**{**dict(
      microbatch=learner.microbatch, max_prompt=config.max_prompt,
      max_response=config.max_response, buckets=tuple(learner.buckets),
      objective=loss.objective, aggregation=loss.aggregation,
      importance=loss.importance, kl_estimator=loss.kl_estimator,
      vocab_chunk=learner.vocab_chunk, remat=learner.remat,
      attention=learner.attention, unroll=learner.unroll), **changes})


def make_sampler(
    config: ConfigDict, mesh: jax.sharding.Mesh, model: ModelConfig,
    stop_ids: tuple[int, ...]) -> Sampler:
  """The sampler for `prompts_per_step` prompts of `samples_per_prompt` each."""
  shards = sharding.data_shards(mesh)
  rows = config.prompts_per_step * config.samples_per_prompt
  per_shard = -(-rows // shards)
  # A contiguous run of requests may begin and end inside a group.
  prompts_per_shard = min(
      config.prompts_per_step, per_shard,
      (per_shard - 2) // config.samples_per_prompt + 2)
  if shards == 1:
    prompts_per_shard = config.prompts_per_step
  sampler = generate_lib.SamplerConfig(
      slots=min(config.sampling.slots, per_shard),
      max_response=config.max_response, stop_ids=stop_ids,
      steps_per_refill=config.sampling.steps_per_refill,
      chunk=config.sampling.chunk, unroll=config.sampling.unroll,
      prompts_per_round=min(
          config.sampling.prompts_per_round or prompts_per_shard,
          prompts_per_shard),
      attention=attention.resolve(
          config.learner.attention, _platform(mesh), config.max_prompt))
  generate = jax.jit(functools.partial(
      generate_lib.sharded_generate, mesh, cfg=model, sampler=sampler))
  return Sampler(generate, sampler, per_shard, prompts_per_shard)


def make(
    config: ConfigDict, model: ModelConfig, mesh: jax.sharding.Mesh,
    stop_ids: tuple[int, ...],
    checkpoint: hf.Checkpoint | None = None) -> Programs:
  """Makes the programs. Nothing is compiled yet.

  Args:
    config: checked by `config.validate`.
    model: the architecture.
    mesh: see `sharding`.
    stop_ids: tokens that end a response.
    checkpoint: that the model's weights come from.

  Raises:
    ValueError: the mesh does not divide the model or the batch, or has no
      devices for `learner.attention`.
  """
  needs = _NEEDS.get(config.learner.attention, _platform(mesh))
  if needs != _platform(mesh):
    raise ValueError(
        f'learner.attention={config.learner.attention} needs a {needs}, but '
        f'this is a {_platform(mesh)}: use learner.attention=auto.')
  if model.kv_heads % mesh.shape['tensor']:
    # Rotary embeddings of half a head would move it to and fro, in a loop
    # whose length differs between data shards: they would wait for ever.
    raise ValueError(
        f'mesh.tensor={mesh.shape["tensor"]} does not divide model.kv_heads='
        f'{model.kv_heads}: no head can be split, use a divisor of it.')
  policy = policy_lib.make(config, model, mesh, checkpoint)
  updates = config.steps * config.learner.epochs * config.learner.updates
  optimizer = optimizer_lib.make(steps=max(updates, 1), **config.optimizer)
  return Programs(
      config, mesh, model, policy,
      learner_lib.make(
          model, learner_config(config), optimizer, mesh=mesh,
          trained=policy.trained, compose=policy.compose),
      make_sampler(config, mesh, model, stop_ids))


def _platform(mesh: jax.sharding.Mesh) -> str:
  return mesh.devices.flat[0].platform


class Shapes(NamedTuple):
  """What the programs of a step are called with, as jax.ShapeDtypeStruct.

  Attributes:
    state: TrainState.
    frozen: parameters that are not trained, or None.
    anchor: parameters of the KL penalty's frozen model, or None.
    weights: all parameters for sampling.
    generate: the sampler's arguments behind `weights`.
    batch: rows of one optimiser step.
    scored: rows of a step, as `score` gets them.
    loss: numbers of the loss.
  """
  state: learner_lib.TrainState
  frozen: Any
  anchor: Any
  weights: Any
  generate: tuple
  batch: LearnerBatch
  scored: LearnerBatch
  loss: loss_lib.LossParams


def shapes(programs: Programs) -> Shapes:
  """The shapes, types and layouts of every argument in a step of training."""
  config, mesh, policy = programs.config, programs.mesh, programs.policy
  split, whole = sharding.rows(mesh), sharding.replicated(mesh)
  kind = programs.model.dtype

  def array(*shape, dtype=jnp.int32, place=split):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

  state = programs.learner.state
  frozen = None
  if config.lora.rank:
    frozen = sharding.placed(policy.shapes, sharding.SAMPLE_RULES, mesh, kind)
  weights = sharding.placed(
      jax.eval_shape(policy.compose, policy.trained, policy.shapes),
      sharding.SAMPLE_RULES, mesh, kind)

  shards, sampler = sharding.data_shards(mesh), programs.sampler
  p = shards * sampler.prompts_per_shard
  r = shards * sampler.requests_per_shard
  scalar = functools.partial(array, place=whole)
  key = jax.eval_shape(lambda: jax.random.key(0))
  generate = (
      Prompts(array(p, config.max_prompt), array(p), array(p)),
      Requests(array(r), array(r), array(r)), array(shards),
      scalar(dtype=key.dtype),
      jax.tree.map(lambda x: scalar(dtype=x.dtype), SamplingParams()),
      scalar())

  several = config.learner.epochs * config.learner.updates > 1
  penalised = bool(config.loss.kl_coef)
  anchor = None
  if penalised:  # with LoRA, the frozen model with nothing beside it
    anchor = {'layers': {}} if config.lora.rank else state.params

  def rows(count, old, anchor):
    tokens = functools.partial(
        array, count, config.max_response, dtype=jnp.float32)
    return LearnerBatch(
        tokens=array(count, config.max_prompt + config.max_response),
        prompt_length=array(count), response_length=array(count),
        mask=tokens(dtype=bool), behaviour_logprobs=tokens(),
        advantages=array(count, dtype=jnp.float32),
        old_logprobs=tokens() if old else None,
        anchor_logprobs=tokens() if anchor else None)

  count = config.prompts_per_step * config.samples_per_prompt
  number = scalar(dtype=jnp.float32)
  loss = loss_lib.LossParams(*[number] * 8)
  if config.loss.dual_clip is not None:
    loss = loss.replace(dual_clip=number)
  return Shapes(
      state=state, frozen=frozen, anchor=anchor, weights=weights,
      generate=generate,
      batch=rows(count // config.learner.updates, several, penalised),
      scored=rows(count, False, False), loss=loss)


def lowered(programs: Programs) -> dict[str, Callable[[], Any]]:
  """Each program of a step, by its phase, as a function that lowers it.

  They are the programs that `train.take_step` calls, in its order: 'relayout'
  (training weights to sampling weights), 'sample', 'score' where a step needs
  log-probs of other policies, and 'update'. With LoRA some have a smaller twin
  that is left out: the scaling of the adapters before 'relayout', and 'score'
  of the frozen model alone where it is also needed with adapters.
  """
  x, learner = shapes(programs), programs.learner
  temperature = x.loss.temperature
  phases = dict(
      relayout=programs.policy.lower_to_sampling,
      sample=lambda: programs.sampler.generate.lower(x.weights, *x.generate))
  if x.batch.old_logprobs is not None or x.anchor is not None:
    phases['score'] = lambda: learner.score.lower(
        x.anchor if x.batch.old_logprobs is None else x.state.params, x.scored,
        temperature, x.frozen)
  phases['update'] = lambda: learner.update.lower(
      x.state, x.batch, x.loss, x.frozen)
  return phases
