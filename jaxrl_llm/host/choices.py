"""Reads static choices and traced numbers of device code from a config."""

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
from jaxrl_llm.models import experts


def rejection(config: ConfigDict) -> Optional[rejection_lib.Rejection]:
  """Returns the choices of `off_policy`, None for 'none'."""
  if config.off_policy == 'none':
    return None
  static = {k: v for k, v in config[config.off_policy].items()
            if k not in rejection_lib.NUMBERS}
  return rejection_lib.Rejection(decoupled=has_actor(config), **static)


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


def scheduled(config: ConfigDict) -> bool:
  """Returns whether the temperature may differ between rows of a batch."""
  return isinstance(config.sampling.temperature, str)


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
  given = config.actor
  correct = functions.traced(config, 'loss.importance')[0]
  if config.loss.importance == 'none' and config.off_policy != 'none':
    correct = 'tis'
  return actor_lib.Training(
      given.ppo, given.distill, given.distill_top_k,
      given.kl_target is not None, correct)


def _actor_numbers(config: ConfigDict) -> dict[str, np.float32]:
  """Returns `LossParams.actor`: clip_low, clip_high, kl_target, those of F."""
  if not has_actor(config):
    return {}
  found = dict(
      clip_low=config.actor.clip_low, clip_high=config.actor.clip_high)
  if config.actor.kl_target is not None:
    found['kl_target'] = config.actor.kl_target
  found = {name: np.float32(value) for name, value in found.items()}
  if config.loss.importance == 'none' and config.off_policy != 'none':
    return {**found, 'cap': np.float32(config[config.off_policy].c1)}
  return found | functions.traced(config, 'loss.importance')[1]


def learner_config(
    config: ConfigDict, **changes: Any) -> learner_lib.LearnerConfig:
  """Returns the learner's static choices, with changes."""
  loss, learner = config.loss, config.learner
  return learner_lib.LearnerConfig(**{**dict(
      tokens=learner.tokens_per_microbatch, max_prompt=config.max_prompt,
      max_response=config.max_response, samples=config.samples_per_prompt,
      whole=learner.updates == 1,
      objective=functions.traced(config, 'loss.objective')[0],
      aggregation=loss.aggregation,
      importance=functions.traced(config, 'loss.importance')[0],
      kl_estimator=loss.kl_estimator,
      rejection=rejection(config), actor=actor(config),
      vocab_chunk=learner.vocab_chunk, remat=learner.remat,
      attention=learner.attention, unroll=learner.unroll), **changes})


def loss_params(config: ConfigDict) -> loss_lib.LossParams:
  """Returns the numbers of the loss, as NumPy scalars."""
  loss, numbers = config.loss, {}
  if config.off_policy != 'none':
    numbers = {name: np.float32(config[config.off_policy][name])
               for name in rejection_lib.NUMBERS}
  return loss_lib.LossParams(
      temperature=np.float32(schedules.at(config.sampling.temperature)),
      entropy_bonus=np.float32(loss.entropy_bonus),
      kl_coef=np.float32(loss.kl_coef),
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
  given = config.lora
  return policy_lib.Adapters(
      given.rank, given.alpha / given.rank, given.targets,
      config_lib.has_sft(config) and not config_lib.sft_of_lora(config)
  ) if given.rank else None


def advantages(config: ConfigDict) -> advantages_lib.Program:
  """Returns the programs of advantages."""
  return advantages_lib.make(
      functions.advantage(config), functions.advantage(config, per_group=True),
      samples=config.samples_per_prompt, ks=config.eval_k,
      overlong=advantages_lib.Overlong(
          config.overlong.mode, config.overlong.window, config.max_response))


def separate_rewards(config: ConfigDict) -> int:
  """Returns K, the rewards that the advantage gets each by itself; or 0."""
  plug, _ = plugs.chosen('advantage', config_lib.flatten(config))
  functions = config.task.get('reward', ())
  return len(functions) if 'separate' in plug.keywords and (
      isinstance(functions, tuple)) else 0
