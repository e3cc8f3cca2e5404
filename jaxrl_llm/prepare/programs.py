"""The device programs of a run.

`make_programs` knows neither task nor files, and needs no device that exists:
`build.parts` runs them, `launch/compile_check.py` compiles it
ahead of time for machines that are elsewhere.
"""

import functools
from typing import Any, Mapping, Sequence

import jax
from ml_collections import ConfigDict

from jaxrl_llm import config as config_lib
from jaxrl_llm import sharding
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import optimizer as optimizer_lib
from jaxrl_llm.learner import options
from jaxrl_llm.learner import policy as policy_lib
from jaxrl_llm.learner.options import OptimizerConfig, POLICY, REWARD
from jaxrl_llm.loop.parts import Player, Programs, RolloutSampler
from jaxrl_llm.loop.rollout import SamplerProgram
from jaxrl_llm.models import attention, hf, hf_config
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import buckets
from jaxrl_llm.prepare import choices, methods
from jaxrl_llm.prepare.stages import Stages
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling import prefixes
from jaxrl_llm.sampling.stops import Stops
from jaxrl_llm.tasks.sft_rows import RowLimits
from jaxrl_llm.types import Curriculum

# Platforms that attention implementations need.
_NEEDS = {'cudnn': 'gpu', 'splash': 'tpu'}

# Elements of a matrix that does not fit into a core's own caches.
_LARGE = 1 << 20

# Tokens of a response that exists to compute at a time. Accelerators take as
# long for fewer, since they read all weights.
_CONTINUED_CPU, _CONTINUED = 32, 256


def updates_of_run(config: ConfigDict, stages: Stages) -> int:
  """Returns the optimiser steps of a run, if every step fills its batches."""
  prompts = config.curriculum_prompts or config.prompts_per_step
  waves = max(config.steps - config.actor.lag, 0)
  full = waves * prompts // config.prompts_per_step  # rounds, at most
  return full * stages.needs.updates_per_round


def with_lengths(
    config: ConfigDict, mesh: jax.sharding.Mesh, model: ModelConfig,
    curriculum: Curriculum, lengths: Sequence[int] | None = None) -> ConfigDict:
  """Replaces `auto` in `sampling.buckets`, and in `learner` by its defaults.

  `fit` replaces the latter where memory is short.

  Args:
    config: its numbers, where it has some, stay.
    mesh: (data, fsdp, tensor), of the sampler.
    model: the policy's architecture.
    curriculum: its capacities are the sizes of a wave.
    lengths: tokens of each training prompt; None if they are not known, then
      no prefill is shorter than the full one.

  Returns:
    A config in which these fields have numbers.
  """
  config = config.copy_and_resolve_references()
  learner = config.learner
  if learner.tokens_per_microbatch == 'auto':
    learner.tokens_per_microbatch = _tokens(mesh, model)
  if learner.remat == 'auto':
    learner.remat = 'none'
  if config.sampling.buckets == 'auto':
    config.sampling.buckets = () if lengths is None else buckets.of_prompts(
        lengths, max_prompt=config.max_prompt,
        together=_prefill_prompts(config, mesh, curriculum))
  return config


# Tokens of a microbatch by default. On a CPU, the activations of more tokens
# leave its caches, and a large model's take memory.
_TOKENS_CPU, _TOKENS_CPU_LARGE, _TOKENS = 512, 1024, 8192
_LARGE_WIDTH = 512


def _tokens(mesh: jax.sharding.Mesh, model: ModelConfig) -> int:
  """Returns the default of `learner.tokens_per_microbatch`."""
  if _platform(mesh) != 'cpu':
    return _TOKENS
  return _TOKENS_CPU_LARGE if model.width >= _LARGE_WIDTH else _TOKENS_CPU


def prompts_per_shard(
    prompts: int, requests: int, least: int, shards: int) -> int:
  """Returns the most distinct prompts that a data shard may serve.

  Args:
    prompts: most prompts of a call.
    requests: most requests of a shard.
    least: least requests for each prompt.
    shards: number of data shards.
  """
  if shards == 1:
    return prompts
  # A contiguous run of requests may begin and end inside a group.
  return min(prompts, requests, (requests - 2) // least + 2)


def make_sampler(
    config: ConfigDict, mesh: jax.sharding.Mesh, model: ModelConfig,
    stops: Stops, curriculum: Curriculum, call: Curriculum | None = None,
    **use: Any) -> SamplerProgram:
  """Makes a sampler at the capacities of the curriculum.

  Args:
    config: sizes of responses, and the section `sampling`.
    mesh: (data, fsdp, tensor).
    model: the architecture.
    stops: tokens and texts that end a response.
    curriculum: its capacities are the sizes of a wave.
    call: one with the capacities of a call, where it may have more requests, or
      fewer for each prompt. A prefill is of as many prompts as without.
    **use: fields of `SamplerConfig` that differ between training and
      evaluation; `slots` None is `sampling.slots`.
  """
  window = _prefill_prompts(config, mesh, curriculum)
  curriculum = call or curriculum
  per_shard, own = _per_shard(mesh, curriculum)
  cpu = _platform(mesh) == 'cpu'
  unroll = config.sampling.unroll
  if unroll is None:
    # CPUs and GPUs copy a layer's weights, keys and values to take them out of
    # their stacks: on an H100, steps of Qwen3-1.7B take 2.2 times as long.
    unroll = _platform(mesh) != 'tpu'
  slots = min(use.pop('slots', None) or config.sampling.slots, per_shard)
  sampler = config_lib.as_section(
      generate_lib.SamplerConfig, config.sampling, slots=slots, unroll=unroll,
      prefill_prompts=window,
      prefill_lengths=config.sampling.buckets,
      max_response=config.max_response, stop_ids=stops.ids,
      stop_texts=stops.texts,
      tempered=(config.sampling.top_k > 0 or config.sampling.top_p < 1
                or config.sampling.min_p > 0),
      transpose=_LARGE if cpu else None,
      share_prompts=prefixes.shared(
          config.sampling.share_prompts, _platform(mesh), slots=slots,
          prompts=own, samples=curriculum.min_count,
          chunk=config.sampling.chunk),
      continue_chunk=min(
          _CONTINUED_CPU if cpu else _CONTINUED, config.max_response),
      prefill_attention=attention.resolve(
          config.learner.attention, mesh.devices.flat[0], config.max_prompt,
          model), **use)
  generate = jax.jit(functools.partial(
      generate_lib.sharded_generate, mesh, cfg=model, sampler=sampler))
  return SamplerProgram(
      generate, sampler, curriculum.max_prompts, curriculum.max_requests,
      per_shard, own)


def _per_shard(
    mesh: jax.sharding.Mesh, curriculum: Curriculum) -> tuple[int, int]:
  """Returns the most requests and distinct prompts of a data shard."""
  shards = sharding.data_shards(mesh)
  requests = -(-curriculum.max_requests // shards)
  return requests, prompts_per_shard(
      curriculum.max_prompts, requests, curriculum.min_count, shards)


def _prefill_prompts(
    config: ConfigDict, mesh: jax.sharding.Mesh, curriculum: Curriculum) -> int:
  """Returns the prompts of one prefill on a data shard."""
  _, own = _per_shard(mesh, curriculum)
  return min(config.sampling.prefill_prompts or own, own)


def _learner_mesh(
    config: ConfigDict, mesh: jax.sharding.Mesh,
    models: Mapping[str, ModelConfig]) -> jax.sharding.Mesh:
  """Returns the learner's mesh, if both meshes fit the models and the batch.

  Args:
    config: batch sizes, `learner.attention` and the section `mesh`.
    mesh: (data, fsdp, tensor), of the sampler.
    models: of the players, by name.

  Raises:
    ValueError: one does not divide a model or the batch, or has no devices for
      `learner.attention`.
  """
  needs = _NEEDS.get(config.learner.attention, _platform(mesh))
  if needs != _platform(mesh):
    raise ValueError(
        f'learner.attention={config.learner.attention} needs a {needs}, but '
        f'this is a {_platform(mesh)}: use learner.attention=auto.')
  for name, model in models.items():
    if model.kv_heads % mesh.shape['tensor']:
      # Rotary embeddings of half a head need collectives in the decode loop,
      # whose length differs between data shards: a deadlock.
      raise ValueError(
          f'mesh.tensor={mesh.shape["tensor"]} does not divide '
          f'{config_lib.MODELS[name]}.kv_heads={model.kv_heads}: no head can '
          'be split, use a divisor of it.')
  learner_mesh = sharding.learner_mesh(mesh, config.mesh.learner_tensor)
  if config.lora.rank and learner_mesh is not mesh:
    raise ValueError(
        f'mesh.learner_tensor={config.mesh.learner_tensor} does not fit '
        f'lora.rank={config.lora.rank}, whose frozen weights have one layout '
        'for sampling and updates: set mesh.learner_tensor=none.')
  rows, shards = methods.minibatch_rows(config), sharding.data_shards(
      learner_mesh)
  if rows % shards:
    raise ValueError(
        f'The {rows} responses of an optimiser step (prompts_per_step x '
        'samples_per_prompt / learner.updates) do not divide over '
        f'{sharding.learner_shards(mesh, learner_mesh)}: use a multiple of '
        f'{shards}.')
  return learner_mesh


def make_programs(
    config: ConfigDict, models: Mapping[str, ModelConfig],
    mesh: jax.sharding.Mesh, stops: Stops, stages: Stages,
    checkpoints: Mapping[str, hf.Checkpoint] | None = None,
    lengths: Sequence[int] | None = None) -> Programs:
  """Makes the programs. Nothing is compiled yet.

  Args:
    config: checked by `config.validate`.
    models: architecture of each player, by name.
    mesh: (data, fsdp, tensor), of the sampler.
    stops: tokens and texts that end a response.
    stages: their capacities are the sizes of the programs.
    checkpoints: sources of the weights of players; others have random ones.
    lengths: tokens of each training prompt; None if they are not known.

  Raises:
    ValueError: the mesh does not divide the model or the batch, or has no
      devices for `learner.attention`.
  """
  learner_mesh = _learner_mesh(config, mesh, models)
  config = with_lengths(
      config, mesh, models[POLICY], stages.curriculum, lengths)
  configs = {name: config if name == POLICY else config_lib.of_player(
      config, name) for name in models}
  policies = {
      name: policy_lib.make_policy(
          model, mesh, choices.adapters(configs[name]),
          (checkpoints or {}).get(name), learner_mesh,
          frozen=name in options.FROZEN and not config_lib.has_sft(
              configs[name]))
      for name, model in models.items()}
  choice = choices.learner_config(
      config, row_facts=stages.selection.stale,
      whole=config.learner.updates == 1 and not stages.selection.stale)
  steps = max(updates_of_run(config, stages), 1)
  learner = learner_lib.make_learner(
      {name: learner_lib.PlayerModel(
          model, optimizer_lib.make_optimizer(
              OptimizerConfig(**configs[name].optimizer), steps) if (
                  methods.learns(config, name)) else None,
          policies[name].trained, policies[name].compose)
       for name, model in models.items() if name != REWARD},
      choice, mesh=learner_mesh)
  needs, carry, wave = stages.needs, stages.settings.carry, stages.curriculum
  if carry:
    wave = wave._replace(max_prompts=carry.groups, max_requests=carry.requests)
  sampler = functools.partial(
      make_sampler, config, mesh, stops=stops, curriculum=wave,
      continues='generated' in needs.columns)
  writer = options.writer(models)
  further = dict(
      continues=True, call=stages.curriculum._replace(min_count=1)
  ) if carry else {}
  writing = sampler(
      model=models[writer], record_experts='experts' in needs.columns,
      top_logprobs=needs.top, **further)
  evaluating = writing
  if (writer != POLICY or config.sampling.kv or config.loss.replay_experts
      or config.eval.slots is not None or carry):
    # Calls of few prompts with few samples each would leave slots idle.
    evaluating = sampler(
        model=models[POLICY], kv=None, slots=config.eval.slots,
        call=wave._replace(max_prompts=wave.max_requests, min_count=1) if (
            config.eval.slots is not None) else None)
  players = {name: Player(model, policies[name])
             for name, model in models.items()}
  rollout_sampler = RolloutSampler(
      writer, writing, policies[writer].sampling(config.sampling.weights))
  return Programs(
      config, mesh, learner_mesh, learner, players, evaluating, rollout_sampler,
      stages, learner_lib.make_reward(
          models[REWARD], choice, closing=stops.closing,
          padding=_padding((checkpoints or {}).get(REWARD)), mesh=learner_mesh)
      if REWARD in models else None)


def _padding(files: hf.Checkpoint | None) -> int:
  """Returns the token that fills rows up in a model's files, -1 for none."""
  found = hf_config.read(files.folder).get('pad_token_id') if files else None
  return -1 if found is None else found


def sft_learner(
    made: Programs, limits: RowLimits, steps: int = 1,
) -> learner_lib.LearnerPrograms:
  """Makes the programs of supervised fine-tuning; nothing is compiled yet.

  Args:
    made: the run's.
    limits: of the rows.
    steps: of the phase, for the learning rate's schedule.
  """
  config, sft = made.config, made.config.sft
  warmup = steps // 20 if sft.warmup_steps is None else sft.warmup_steps
  adapters, rate = config_lib.sft_of_lora(config), sft.learning_rate
  trained = dict(trained=made.policy.trained, compose=made.policy.compose) if (
      adapters) else {}
  if rate is None:
    rate = 2e-4 if adapters else 2e-5 if config.model.hf else 3e-3
  optimizer = optimizer_lib.make_optimizer(config_lib.as_section(
      OptimizerConfig, sft, learning_rate=rate, warmup_steps=warmup),
                                           max(steps, 1))
  return learner_lib.make_learner(
      {POLICY: learner_lib.PlayerModel(made.model, optimizer, **trained)},
      choices.learner_config(
          config, samples=1, objective='likelihood', aggregation='token_mean',
          importance='none', term='none', rejection=None, actor=None,
          teacher=None, whole=True, max_prompt=limits.max_prompt,
          max_response=limits.max_response), mesh=made.learner_mesh)


def _platform(mesh: jax.sharding.Mesh) -> str:
  return mesh.devices.flat[0].platform
