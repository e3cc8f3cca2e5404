"""Static choices of the learner by the config of a run."""

from typing import Any

from ml_collections import ConfigDict

from jaxrl_llm.learner import actor as actor_lib
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import rejection as rejection_lib


def learner_config(
    config: ConfigDict, **changes: Any) -> learner_lib.LearnerConfig:
  """Returns the learner's static choices, with changes."""
  loss, learner = config.loss, config.learner
  return learner_lib.LearnerConfig(**{**dict(
      tokens=learner.tokens_per_microbatch, max_prompt=config.max_prompt,
      max_response=config.max_response, samples=config.samples_per_prompt,
      whole=learner.updates == 1,
      objective=loss.objective, aggregation=loss.aggregation,
      importance=loss.importance, kl_estimator=loss.kl_estimator,
      rejection=rejection_lib.of(config), actor=actor_lib.of(config),
      vocab_chunk=learner.vocab_chunk, remat=learner.remat,
      attention=learner.attention, unroll=learner.unroll), **changes})
