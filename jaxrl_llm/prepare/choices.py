"""Reads static choices and traced numbers of device code from a config."""

import dataclasses
from typing import Any, Collection, Optional

from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm.base import schedules
from jaxrl_llm.learner import advantages as advantages_lib
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import policy as policy_lib
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.learner.options import (
  ActorNumbers,
  LossWeights,
  OverlongOptions,
  RejectionBounds,
  TeacherNumbers,
)
from jaxrl_llm.prepare import methods


def _numbers(cls: type, given: ConfigDict) -> dict[str, np.float32]:
  """Returns the numbers of a section under the names of a dataclass's fields.

  Fields that are None are left out.
  """
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
      objective=methods.traced(config, 'loss.objective')[0],
      importance=methods.traced(config, 'loss.importance')[0],
      term=methods.traced(config, 'loss.term')[0],
      rejection=methods.rejection(config),
      actor=methods.actor(config),
      teacher=methods.teacher(config)) | changes)


def loss_params(config: ConfigDict) -> update_lib.LossParams:
  """Returns the numbers of the loss, as NumPy scalars."""
  numbers = {} if config.off_policy == 'none' else _numbers(
      RejectionBounds, config[config.off_policy])
  of_actor = {} if methods.actor(config) is None else _numbers(
      ActorNumbers, config.actor) | methods.actor_importance(config)[1]
  return update_lib.LossParams(
      **_numbers(LossWeights, config.loss),
      temperature=np.float32(schedules.at(config.sampling.temperature)),
      budget=np.float32(config.max_response),
      objective=methods.traced(config, 'loss.objective')[1],
      importance=methods.traced(config, 'loss.importance')[1],
      term=methods.traced(config, 'loss.term')[1],
      rejection=numbers, actor=of_actor, teacher={} if (
          methods.teacher(config) is None) else _numbers(
              TeacherNumbers, config.teacher))


def supervised_params(config: ConfigDict) -> update_lib.LossParams:
  """Returns the numbers of the loss of the objective 'likelihood'."""
  return loss_params(config).replace(
      temperature=np.float32(1.0), entropy_bonus=np.float32(0.0),
      objective={}, importance={}, term={}, rejection={}, actor={},
      teacher={})


def adapters(config: ConfigDict) -> Optional[policy_lib.Adapters]:
  """Returns LoRA's matrices, None if all weights are trained."""
  return config_lib.as_section(
      policy_lib.Adapters, config.lora, warm=config_lib.has_sft(config) and (
          not config_lib.sft_of_lora(config))) if config.lora.rank else None


def advantages(
    config: ConfigDict, columns: Collection[str] = (),
) -> advantages_lib.Program:
  """Returns the programs of advantages, which take columns of rows."""
  return advantages_lib.make_program(
      methods.advantage(config), methods.advantage(config, per_group=True),
      # A score says of no response that it is right.
      samples=config.samples_per_prompt, ks=() if (
          methods.has_reward_model(config)) else config.eval_k,
      overlong=config_lib.as_section(OverlongOptions, config.overlong),
      budget=config.max_response, columns=columns)
