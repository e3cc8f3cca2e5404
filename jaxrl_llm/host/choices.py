"""Reads static choices and traced numbers of device code from a config."""

import dataclasses
from typing import Any, Optional

from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm import plugs
from jaxrl_llm.base import schedules
from jaxrl_llm.host import functions
from jaxrl_llm.learner import actor as actor_lib
from jaxrl_llm.learner import advantages as advantages_lib
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import loss as loss_lib
from jaxrl_llm.learner import policy as policy_lib
from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.learner.options import (
    ActorNumbers,
    LossWeights,
    RejectionBounds,
)
from jaxrl_llm.models import experts


def rejection(config: ConfigDict) -> Optional[rejection_lib.Rejection]:
  """Returns the choices of `off_policy`, None for 'none'."""
  if config.off_policy == 'none':
    return None
  return config_lib.as_section(
      rejection_lib.Rejection, config[config.off_policy],
      decoupled=has_actor(config))


def recorded_experts(config: ConfigDict) -> Optional[experts.Record]:
  """Returns the form of the experts that the sampler records, or None.

  Raises:
    ValueError: an environment answers the responses.
  """
  if not config.loss.replay_experts:
    return None
  if has_turns(config):
    raise ValueError(
        'loss.replay_experts=true does not work with an environment or tools: '
        'set it to false.')
  return experts.Record.of(config_lib.model_config(config))


def has_turns(config: ConfigDict) -> bool:
  """Returns whether an environment answers the responses."""
  return 'max_turns' in config.task


def has_actor(config: ConfigDict) -> bool:
  """Returns whether the actor is another model than the policy."""
  return bool(config.actor.model.hf or config.actor.model.preset)


def actor(config: ConfigDict) -> Optional[actor_lib.Training]:
  """Returns how an actor that is another model learns; None without one.

  Its F is `loss.importance`. Under rejection without one, it is the truncation
  at c1, as in the policy's loss.
  """
  if not has_actor(config):
    return None
  correct = functions.traced(config, 'loss.importance')[0]
  if config.loss.importance == 'none' and config.off_policy != 'none':
    correct = 'tis'
  return config_lib.as_section(
      actor_lib.Training, config.actor,
      controlled=config.actor.kl_target is not None, importance=correct)


def _actor_numbers(config: ConfigDict) -> dict[str, np.float32]:
  """Returns `LossParams.actor`: clip_low, clip_high, kl_target, those of F."""
  if not has_actor(config):
    return {}
  found = _numbers(ActorNumbers, config.actor)
  if config.loss.importance == 'none' and config.off_policy != 'none':
    return {**found, 'cap': np.float32(config[config.off_policy].c1)}
  return found | functions.traced(config, 'loss.importance')[1]


def _numbers(cls: type, given: ConfigDict) -> dict[str, np.float32]:
  """Returns the fields of a dataclass that a section gives a number."""
  names = [field.name for field in dataclasses.fields(cls)]
  return {name: np.float32(given[name]) for name in names
          if given[name] is not None}


def learner_config(
    config: ConfigDict, **changes: Any) -> learner_lib.LearnerConfig:
  """Returns the learner's static choices, with changes."""
  return config_lib.as_section(
      learner_lib.LearnerConfig, config.loss, config.learner, **dict(
      tokens=config.learner.tokens_per_microbatch,
      max_prompt=config.max_prompt, max_response=config.max_response,
      samples=config.samples_per_prompt, whole=config.learner.updates == 1,
      objective=functions.traced(config, 'loss.objective')[0],
      importance=functions.traced(config, 'loss.importance')[0],
      rejection=rejection(config), actor=actor(config)) | changes)


def loss_params(config: ConfigDict) -> loss_lib.LossParams:
  """Returns the numbers of the loss, as NumPy scalars."""
  numbers = {} if config.off_policy == 'none' else _numbers(
      RejectionBounds, config[config.off_policy])
  return loss_lib.LossParams(
      **_numbers(LossWeights, config.loss),
      temperature=np.float32(schedules.at(config.sampling.temperature)),
      budget=np.float32(config.max_response),
      objective=functions.traced(config, 'loss.objective')[1],
      importance=functions.traced(config, 'loss.importance')[1],
      rejection=numbers, actor=_actor_numbers(config))


def supervised_params(config: ConfigDict) -> loss_lib.LossParams:
  """Returns the numbers of the loss of the objective 'likelihood'."""
  return loss_params(config).replace(
      temperature=np.float32(1.0), entropy_bonus=np.float32(0.0),
      objective={}, importance={}, rejection={}, actor={})


def adapters(config: ConfigDict) -> Optional[policy_lib.Adapters]:
  """Returns LoRA's matrices, None if all weights are trained."""
  return config_lib.as_section(
      policy_lib.Adapters, config.lora, warm=config_lib.has_sft(config) and (
          not config_lib.sft_of_lora(config))) if config.lora.rank else None


def advantages(config: ConfigDict) -> advantages_lib.Program:
  """Returns the programs of advantages."""
  return advantages_lib.make_program(
      functions.advantage(config), functions.advantage(config, per_group=True),
      samples=config.samples_per_prompt, ks=config.eval_k,
      overlong=config_lib.as_section(
          advantages_lib.Overlong, config.overlong,
          budget=config.max_response))


def separate_rewards(config: ConfigDict) -> int:
  """Returns K, the rewards that the advantage gets each by itself; or 0."""
  plug, _ = plugs.chosen('advantage', config_lib.flatten(config))
  functions = config.task.get('reward', ())
  return len(functions) if 'separate' in plug.keywords and (
      isinstance(functions, tuple)) else 0
