"""Methods that a config chooses, for the programs of the learner.

A config is checked by them, so they import no program.
"""

import functools
from typing import Any, Callable, Optional

import jax
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm.base import schedules
from jaxrl_llm.config import plugs
from jaxrl_llm.learner import actor as actor_lib
from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.learner import teacher as teacher_lib
from jaxrl_llm.learner.options import ACTOR, POLICY, REWARD, TEACHER
from jaxrl_llm.models import experts
from jaxrl_llm.types import Carry, Settings


def rejection(config: ConfigDict) -> Optional[rejection_lib.Rejection]:
  """Returns the choices of `off_policy`, None for 'none'."""
  if config.off_policy == 'none':
    return None
  return config_lib.as_section(
      rejection_lib.Rejection, config[config.off_policy],
      decoupled=ACTOR in config_lib.players(config_lib.flatten(config)))


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


def minibatch_rows(config: ConfigDict) -> int:
  """Returns the rows of an optimiser step."""
  return (config.prompts_per_step * config.samples_per_prompt
          // config.learner.updates)


def settings(
    config: ConfigDict, carry: Optional[Carry] = None) -> Settings:
  """Returns what the steps of a run read."""
  of_actor = actor(config)
  return Settings(
      seed=config.seed, steps=config.steps, samples=config.samples_per_prompt,
      max_prompt=config.max_prompt, max_response=config.max_response,
      minibatch=minibatch_rows(config), epochs=config.learner.epochs,
      drop_zero_advantage=config.drop_zero_advantage,
      skips_zero=config.learner.skip_zero and not gradient_at_zero(config),
      lag=config.actor.lag,
      temperature=config.sampling.temperature,
      tempered=config.loss.behaviour == 'tempered',
      advantage='' if plugs.plug('advantage', config.advantage).packaged else (
          config.advantage),
      actor_learns=of_actor is None or of_actor.learns,
      lam=1.0 if config.off_policy == 'none' else (
          config[config.off_policy].lam),
      records=config.log.samples, workdir=config.workdir, carry=carry,
      teacher_prompt=teacher_prompt(config),
      least_reward=0.0 if config.advantage == 'maxrl' else -np.inf,
      **{'reward': (config.reward.coef, config.reward.verifier)} if (
          has_reward_model(config)) else {})


def gradient_at_zero(config: ConfigDict) -> str:
  """Returns a field by which rows with an advantage of 0 matter to updates.

  They have a gradient, or something reads what the update says of them. It is
  '' if they matter to the denominators alone, see `learner.skip_zero`.
  """
  flat = config_lib.flatten(config)
  packaged = lambda field, name: plugs.plug(field, name).packaged
  return next((field for field, matters in (
      ('loss.entropy_bonus', config.loss.entropy_bonus != 0),
      ('loss.kl_coef', config.loss.kl_coef > 0),
      ('loss.term', config.loss.term != 'none'),
      *((field, not packaged(field, flat[field])) for field in (
          'loss.objective', 'loss.importance', 'selection', 'curriculum')),
      ('off_policy', config.off_policy != 'none'),
      ('selection', config.selection == 'cbs'),
      ('actor', actor(config) is not None),
      ('teacher', teacher(config) is not None)) if matters), '')


def has_turns(config: ConfigDict) -> bool:
  """Returns whether an environment answers the responses."""
  return 'max_turns' in config.task


def actor(config: ConfigDict) -> Optional[actor_lib.Training]:
  """Returns how an actor that is another model learns; None without one."""
  if ACTOR not in config_lib.players(config_lib.flatten(config)):
    return None
  return config_lib.as_section(
      actor_lib.Training, config.actor,
      controlled=config.actor.kl_target is not None,
      importance=actor_importance(config)[0])


def teacher(config: ConfigDict) -> Optional[teacher_lib.Distillation]:
  """Returns the form of the KL to a teacher; None without one."""
  prompt = teacher_prompt(config)
  if not prompt and TEACHER not in config_lib.players(
      config_lib.flatten(config)):
    return None
  return config_lib.as_section(
      teacher_lib.Distillation, config.teacher, prompt_columns=prompt)


def teacher_prompt(config: ConfigDict) -> int:
  """Returns the most tokens of a prompt of the teacher's own; 0 without one."""
  given = config.teacher
  return (given.max_tokens or config.max_prompt) if given.hint else 0


def prompt_columns(config: ConfigDict) -> int:
  """Returns the most tokens of a prompt in an update, whoever reads it."""
  return max(config.max_prompt, teacher_prompt(config))


def has_reward_model(config: ConfigDict) -> bool:
  """Returns whether a model makes the rewards."""
  return REWARD in config_lib.players(config_lib.flatten(config))


def learns(config: ConfigDict, player: str) -> bool:
  """Returns whether a player of a config is trained."""
  return player == POLICY or player == ACTOR and actor(config).learns


def actor_importance(
    config: ConfigDict,
) -> tuple[str | Callable[..., Any], dict[str, np.float32]]:
  """Returns F of the actor's loss, and its numbers.

  It is `loss.importance`. Under rejection without one, it is the truncation at
  c1, as in the policy's loss.
  """
  if config.loss.importance == 'none' and config.off_policy != 'none':
    return 'tis', {'cap': np.float32(config[config.off_policy].c1)}
  return traced(config, 'loss.importance')


def traced(
    config: ConfigDict, field: str,
) -> tuple[str | Callable[..., Any], dict[str, np.float32]]:
  """Returns an objective, a correction or a further term, and its numbers.

  Numbers are traced, so that new ones never recompile; other hyperparameters
  are bound to the function. None is left out where it is the default. The
  function's `columns` are those that it names.
  """
  plug, given = plugs.chosen(field, config_lib.flatten(config))
  is_number = lambda x: isinstance(x, (int, float)) and not isinstance(x, bool)
  default = {
      one.parameter: one.default for one in plug.hyperparameters.values()}
  static = {k: v for k, v in given.items() if not is_number(v) and (
      v is not None or default.get(k) is not None)}
  function = plug.name
  if not plug.packaged or static:
    function = functools.partial(plug.guarded(), **static)
    function.columns = tuple(plug.columns)
  return function, {
      name: np.float32(value) for name, value in given.items()
      if is_number(value)}


def named(config: ConfigDict, *fields: str) -> dict[str, bool]:
  """Returns the columns that the plugs of fields name, and whether one of the
  plugs needs them.
  """
  flat, found = config_lib.flatten(config), {}
  for field in fields or LOSS:
    for name, needed in plugs.chosen(field, flat)[0].columns.items():
      found[name] = needed or found.get(name, False)
  return found


LOSS = 'loss.objective', 'loss.importance', 'loss.term'


def advantage(
    config: ConfigDict, *, per_group: bool = False,
) -> Callable[..., tuple[Any, ...]]:
  """Makes the advantage function of a config.

  Args:
    config: it names the advantage.
    per_group: leave out scaling by the batch, so that a group's advantages do
      not depend on the others. A function that scales takes it as an argument.

  Returns:
    `learner.advantages.Advantage`, jittable, with a traced `step`. Its columns
    are those that the function names.
  """
  plug, given = plugs.chosen('advantage', config_lib.flatten(config))
  function, at_step = plug.guarded(), {
      one.parameter: schedules.make_schedule(given.pop(one.parameter))
      for one in plug.hyperparameters.values() if one.scheduled}
  if 'per_group' in plug.keywords:
    given['per_group'] = per_group

  if 'weights' in plug.keywords:
    given['weights'] = tuple(config.task.get('reward_weights', ()))

  def compute(rewards, where, step, columns=None):
    columns = columns or {}
    found = function(rewards, where=where, **given, **columns, **{
        name: value(step) for name, value in at_step.items()})
    values, metrics, *rows = found if isinstance(found, tuple) else (found, {})
    values = jax.numpy.asarray(values)
    by_token = 'turn' in columns and values.shape == columns['turn'].shape
    # Beside advantages by token may stand those of the rows.
    for shape in map(np.shape, rows[:1] if by_token else [values]):
      if shape != rewards.shape or len(rows) > by_token:
        raise ValueError(
            f'advantage={plug.name} returns an array of the shape {shape} for '
            f'rewards of the shape {rewards.shape}: return one of their shape, '
            'or (advantages, metrics).')
    return values, metrics, *rows

  return compute


def reward_functions(config: ConfigDict) -> int:
  """Returns F, the reward functions of the user; 0 for one alone or none."""
  functions = config.task.get('reward', ())
  return len(functions) if isinstance(functions, tuple) else 0
