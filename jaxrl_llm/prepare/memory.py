"""Estimate of the memory that a run needs at least.

It refuses sizes that clearly cannot fit, before anything is compiled. The
compiler's own numbers, of a job that may fit, are in `launch/compile_check.py`.
"""

import math
import os
from typing import Mapping, NamedTuple

import jax
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm.base.declared import AUTO
from jaxrl_llm.learner.options import POLICY, writer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.prepare import methods
from jaxrl_llm.prepare.stages import Stages


class Part(NamedTuple):
  """Arrays of one purpose.

  Attributes:
    name: the arrays, for the message.
    fix: the advice if they are too large.
    bytes: their size, on all devices together.
  """
  name: str
  fix: str
  bytes: int


def check(
    config: ConfigDict, models: Mapping[str, ModelConfig],
    mesh: jax.sharding.Mesh, stages: Stages, heldout: int,
    training: bool = True) -> None:
  """Refuses a run that cannot fit into the memory of this machine.

  Args:
    config: with all sizes.
    models: architecture of each player, by name.
    mesh: the sampler's devices.
    stages: their capacities are the sizes of the programs.
    heldout: number of held-out problems.
    training: False for an evaluation.

  Raises:
    ValueError: one sentence with the largest arrays, and how to lower them.
  """
  room = available(mesh)
  found = parts(
      config, models, dict(mesh.shape), stages, heldout, training,
      mesh.devices.flat[0].platform)
  needed = sum(part.bytes for part in found)
  if room is not None and needed > room:
    most = max(found, key=lambda part: part.bytes)
    raise ValueError(
        f'The run needs at least {_text(needed)}, but there are {_text(room)} '
        f'of memory; {_text(most.bytes)} are {most.name}: {most.fix}.')


def available(mesh: jax.sharding.Mesh) -> int | None:
  """Returns the bytes of all devices of a mesh; None if they are not known."""
  if mesh.devices.flat[0].platform == 'cpu':
    return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
  stats = jax.local_devices()[0].memory_stats() or {}
  one = stats.get('bytes_limit')
  return one and one * mesh.devices.size


def parts(
    config: ConfigDict, models: Mapping[str, ModelConfig],
    mesh: dict[str, int], stages: Stages, heldout: int, training: bool,
    platform: str = 'cpu') -> list[Part]:
  """Returns the arrays that exist at the same time, each a lower bound.

  Those of the host count where its memory is that of the devices.

  Args:
    config, models, stages, heldout, training: arguments of `check`.
    mesh: size of each axis.
    platform: of the devices.
  """
  model = models[POLICY]
  item = np.dtype('float32' if model.dtype == 'float32' else 'float16').itemsize
  requests = stages.curriculum.max_requests
  rows = (1 + config.actor.lag) * requests + stages.selection.capacity + (
      stages.curriculum.capacity * config.samples_per_prompt)
  width = config.max_prompt + 2 * config.max_response
  if config.off_policy != 'none':
    width += 2 * config[config.off_policy].top_k * config.max_response
  found = _weights(config, model, mesh, item, training)
  if platform == 'cpu':
    rollouts = (
        'the responses that are carried over',
        'lower sampling.carry_groups, or raise sampling.wave_steps') if (
            stages.settings.carry) else (
                'the rollouts of a step', 'lower prompts_per_step, '
                'samples_per_prompt, max_prompt, max_response, or keep fewer '
                'rounds')
    found += [
        Part(*rollouts, 4 * rows * width),
        Part('the verdicts of an evaluation',
             'lower eval.samples or eval.problems',
             16 * min(heldout, config.eval.problems or heldout)
             * config.eval.samples)]
  for name in [*models][1:] * training:  # The policy is the first.
    learns = methods.learns(config, name)
    each = 16 if learns else 4 if models[name].dtype == 'float32' else 2
    found.append(Part(
        f'the weights of {config_lib.MODELS[name]}'
        f'{", with their gradients and moments" * learns}',
        f'choose a smaller {config_lib.MODELS[name]}',
        each * mesh['data'] * models[name].parameter_count()))
  if config_lib.has_sft(config):
    found.append(Part(
        'the rows of a supervised step', 'lower sft.batch',
        4 * config.sft.batch * (
            config.max_prompt + config.max_response)))
  shards = mesh['data'] * mesh['fsdp']
  slots = min(config.sampling.slots, math.ceil(requests / shards)) * shards
  sampling = _sampling(
      config, models[writer(models)], slots, item, platform, training)
  update = _update(config, model, shards, item) if training else []
  return found + max(
      [sampling, update], key=lambda phase: sum(part.bytes for part in phase))


def _weights(
    config: ConfigDict, model: ModelConfig, mesh: dict[str, int], item: int,
    training: bool) -> list[Part]:
  """Returns the parameters; `item` is the bytes of a number of their type."""
  smaller = 'choose a smaller model, or lower the sizes in config.model'
  if config.model.hf and item == 4:
    smaller = 'set model.dtype=bfloat16, or choose a smaller model'
  weights, rank = model.parameter_count(), config.lora.rank
  name = 'the weights'
  if training and not rank:
    # Parameters, two moments, gradients; in sampling a copy of another type.
    weights *= 16 * mesh['data']
    name = 'the weights, with their gradients and moments'
  else:
    copy = training and config.sampling.weights is not None  # a byte each
    weights *= (item + copy) * mesh['data'] * mesh['fsdp']
  return [
      Part(name, smaller, weights),
      Part('the matrices of LoRA', 'lower lora.rank',
           16 * rank * model.layers * model.width * training)]


def _sampling(
    config: ConfigDict, actor: ModelConfig, slots: int, item: int,
    platform: str, training: bool) -> list[Part]:
  """Returns the arrays that sampling needs, in `slots` slots."""
  entry = actor.head_dim * item
  if training and config.sampling.kv:
    entry = actor.head_dim + 4  # a byte each, and their scale
  columns = config.max_prompt + config.max_response
  share = config.sampling.share_prompts
  if share or share is None and platform != 'cpu':
    columns = config.max_response  # and prefixes, of one prompt or more
  return [
      Part('the cache of the decode slots',
           'lower sampling.slots, max_prompt or max_response',
           slots * columns * 2 * actor.layers * actor.kv_heads * entry),
      Part('the logits of the decode slots', 'lower sampling.slots',
           slots * actor.vocab_size * 4),
      Part('the latest tokens of the decode slots',
           'lower sampling.steps_per_refill',
           12 * slots * config.sampling.steps_per_refill)]


def _update(
    config: ConfigDict, model: ModelConfig, shards: int, item: int,
) -> list[Part]:
  """Returns the arrays that an update of the parameters needs."""
  # A microbatch has a row at least, and all of an update at most.
  tokens = methods.prompt_columns(config) + config.max_response - 1
  if config.learner.tokens_per_microbatch != AUTO:
    tokens = max(tokens, min(
        config.learner.tokens_per_microbatch, tokens * config.prompts_per_step
        * config.samples_per_prompt // config.learner.updates // shards))
  # The hidden states between layers, which the backward pass starts from.
  return [
      Part('the activations of a microbatch', 'lower '
           'learner.tokens_per_microbatch, max_prompt or max_response',
           shards * tokens * model.layers * model.width * item),
      Part('the logits of a chunk', 'lower learner.vocab_chunk', min(
          config.learner.vocab_chunk or 1, shards * tokens)
           * model.vocab_size * 4)]


def _text(size: int) -> str:
  return f'{size / 1e9:,.1f} GB'
