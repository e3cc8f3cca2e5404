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
    config: ConfigDict, plan: str = 'rows',
    **changes: Any) -> update_lib.LearnerConfig:
  """Returns the learner's static choices for a plan, with changes."""
  loss, learner = config.loss, config.learner
  return update_lib.LearnerConfig(**{**dict(
      microbatch=microbatch(config), max_prompt=config.max_prompt,
      max_response=config.max_response, plan=plan,
      buckets=dict(
          rows=learner.buckets, waves=learner.response_buckets,
          lists=learner.list_buckets)[plan],
      objective=loss.objective, aggregation=loss.aggregation,
      importance=loss.importance, kl_estimator=loss.kl_estimator,
      rejection=rejection_lib.of(config), actor=actor_lib.of(config),
      vocab_chunk=learner.vocab_chunk, remat=learner.remat,
      attention=learner.attention, unroll=learner.unroll), **changes})


def _why_no_waves(config, mesh, models):
  """Returns why prompts cannot have passes of their own, or '' if they can."""
  full = config.max_prompt + config.max_response
  kind = attention.resolve(
      config.learner.attention, mesh.devices.flat[0].platform, full)
  windows = [m.window for m in models if m.window and m.window < full]
  if mesh.shape['fsdp'] > 1:
    return (f'mesh.fsdp={mesh.shape["fsdp"]} splits the weights, which a pass '
            'over the prompts alone would gather once more')
  if kind == 'cudnn':
    return 'learner.attention=cudnn has no prefix'
  if kind.startswith('splash') and windows:
    return (f'learner.attention={kind} has no prefix with a window of '
            f'{windows[0]} tokens in rows of {full}')
  return ''


def plan(
    config: ConfigDict, mesh: jax.sharding.Mesh,
    models: Sequence[ModelConfig]) -> str:
  """Chooses how updates compute rows, one of `passes.PLANS`, and logs it.

  Args:
    config: of the run.
    mesh: see `sharding`.
    models: those of the players.

  Raises:
    ValueError: shared prompts are wanted and cannot be.
  """
  wanted, short = config.learner.share_prompts, config.max_prompt < 2
  if wanted and short:
    raise ValueError(
        'learner.share_prompts=true is not possible with max_prompt=1, because '
        'a response begins with the last token of its prompt: use '
        'learner.share_prompts=none.')
  reason = _why_no_waves(config, mesh, models)
  if wanted is False or short:
    found, how = 'rows', 'each prompt with each of its responses'
  elif reason:
    found, how = 'lists', (
        'the tokens of a microbatch in one list on each device, with prompts '
        f'once in it ({reason})')
  elif wanted is None and config.samples_per_prompt < 2:
    found, how = 'rows', 'each prompt with its response'
  else:
    found, how = 'waves', 'each prompt once for all its responses'
  logging.info('Updates compute %s.', how)
  return found
