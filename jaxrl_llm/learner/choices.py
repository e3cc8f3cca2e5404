"""Static choices of the learner by the config of a run."""

from typing import Any, Sequence

from absl import logging
import jax
from ml_collections import ConfigDict

from jaxrl_llm.learner import actor as actor_lib
from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.learner import rounds
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.models import attention
from jaxrl_llm.models.config import ModelConfig


def microbatch(config: ConfigDict) -> int:
  """Returns the rows of a forward and backward pass of an update."""
  return min(config.learner.microbatch, rounds.minibatch_rows(config))


def learner_config(
    config: ConfigDict, share_prompts: bool = False,
    **changes: Any) -> update_lib.LearnerConfig:
  """Returns the learner's static choices, with changes."""
  loss, learner = config.loss, config.learner
  return update_lib.LearnerConfig(**{**dict(
      microbatch=microbatch(config), max_prompt=config.max_prompt,
      max_response=config.max_response, share_prompts=share_prompts,
      buckets=learner.response_buckets if share_prompts else learner.buckets,
      objective=loss.objective, aggregation=loss.aggregation,
      importance=loss.importance, kl_estimator=loss.kl_estimator,
      rejection=rejection_lib.of(config), actor=actor_lib.of(config),
      vocab_chunk=learner.vocab_chunk, remat=learner.remat,
      attention=learner.attention, unroll=learner.unroll), **changes})


def why_not_shared(
    config: ConfigDict, mesh: jax.sharding.Mesh,
    models: Sequence[ModelConfig]) -> str:
  """Returns why updates cannot compute prompts once, or '' if they can.

  Args:
    config: of the run.
    mesh: see `sharding`.
    models: those of the players.
  """
  full = config.max_prompt + config.max_response
  kind = attention.resolve(
      config.learner.attention, mesh.devices.flat[0].platform, full)
  windows = [m.window for m in models if m.window and m.window < full]
  if mesh.shape['fsdp'] > 1:
    return (f'mesh.fsdp={mesh.shape["fsdp"]} splits the weights, which a pass '
            'over the prompts alone would gather once more')
  if config.max_prompt < 2:
    return 'max_prompt=1: a response begins with the last token of its prompt'
  if kind == 'cudnn':
    return 'learner.attention=cudnn cannot do it'
  if kind.startswith('splash') and windows:
    return (f'learner.attention={kind} cannot do it with a window of '
            f'{windows[0]} tokens in rows of {full}')
  return ''


def shares_prompts(
    config: ConfigDict, mesh: jax.sharding.Mesh,
    models: Sequence[ModelConfig]) -> bool:
  """Decides whether updates compute prompts once, see `prompts`, and logs it.

  Args:
    config: of the run.
    mesh: see `sharding`.
    models: those of the players.

  Raises:
    ValueError: it is wanted and cannot be.
  """
  wanted, reason = config.learner.share_prompts, why_not_shared(
      config, mesh, models)
  if wanted and reason:
    raise ValueError(
        f'learner.share_prompts=true is not possible, because {reason}: use '
        'learner.share_prompts=none.')
  if wanted is None and config.samples_per_prompt < 2:
    reason = 'samples_per_prompt=1'
  if wanted is False:
    reason = 'learner.share_prompts=false'
  logging.info('Updates compute each prompt %s.', (
      f'with each of its responses ({reason})' if reason else
      'once for all its responses'))
  return not reason
