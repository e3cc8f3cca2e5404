"""Needs of a run beside its rewards: one value, made when the run is built."""

from typing import Any

from ml_collections import ConfigDict

from jaxrl_llm import config as config_lib
from jaxrl_llm.config import plugs
from jaxrl_llm.prepare import methods
from jaxrl_llm.types import (
  Curriculum,
  LearnerBatch,
  Needs,
  RolloutTokens,
  Selection,
  Table,
)


def of(
    config: ConfigDict, curriculum: Curriculum, selection: Selection,
    carried: bool = False) -> Needs:
  """Returns the needs of a run.

  The first update after a rollout is made by the old policy itself. Later ones,
  and those on rows of an earlier step, need its log-probs from `Learner.score`:
  with the new policy in its place every ratio would be 1. A rejection towards
  the old policy needs them for the whole batch, before it is split.

  The exact normaliser of a rejection needs the parameters that sampled the
  rows. An actor that is another model takes part in the update itself, so that
  it needs no copy for its first update, nor for any if it does not learn.

  Args:
    config: of the run.
    curriculum, selection: its stages.
    carried: whether responses are carried over to later waves.

  Raises:
    ValueError: `loss.replay_experts` meets an environment.
  """
  rejection, actor = methods.rejection(config), methods.actor(config)
  per_round = config.learner.epochs * -(
      -selection.rows // methods.minibatch_rows(config))
  updates = per_round * curriculum.max_rounds
  stale = (updates > 1 or curriculum.stale or selection.stale
           or config.actor.lag > 0 or carried)
  record, turns = methods.recorded_experts(config), methods.has_turns(config)
  top = rejection.top_k if rejection and rejection.uses_top else 0
  columns = _columns(config, stale, bool(top)) | dict.fromkeys(
      ['carried', 'token_steps'] * carried)
  if record and 'experts' in columns:
    columns['experts'] = record.type
  scored = {name: kind for name, kind in columns.items()
            if name in ('experts', 'temperature')}
  if top and 'z' in columns:
    scored |= dict.fromkeys(_TOP)
  named, taken = methods.named(config), methods.named(config, 'advantage')
  return Needs(
      updates_per_round=per_round, updates_per_step=updates, columns=columns,
      updated={
          **{name: kind for name, kind in columns.items() if name in (
              {*named, *RolloutTokens.declared, 'temperature',
               'token_advantages', 'teacher_prompt_length'} - {'generated'})},
          **({'identity': None} if rejection else {})},
      scored=scored,
      of_advantage=tuple(
          name for name, column in Table.declared.items()
          if name in {*taken, *(_TURNS if 'turn' in taken else ())} and (
              name in columns or not column.maker)),
      axes=dict(
          L=config.max_prompt, T=config.max_response,
          S=config.max_prompt + config.max_response, K=top, I=3,
          F=methods.reward_functions(config),
          U=config.task.max_turns if turns else 1,
          E=record.width if record else 0,
          Z=methods.teacher_prompt(config) + config.max_response),
      top=top,
      behaviour_params=bool(rejection) and rejection.needs_actor and not (
          actor and (not actor.learns or updates == 1)))


_TOP, _TURNS = ('top_ids', 'top_logprobs'), ('turn_start', 'turn_length')
_OF_TEACHER = 'teacher_prompt_length', 'teacher_tokens'


def _columns(config: ConfigDict, stale: bool, top: bool) -> dict[str, Any]:
  """Returns the columns of a run's rows, see `Needs`.

  Args:
    config: of the run.
    stale: whether an update may be on rows of another policy.
    top: whether the sampler records its likeliest tokens.
  """
  rejection, actor = methods.rejection(config), methods.actor(config)
  named, of_advantage = (
      methods.named(config), methods.named(config, 'advantage'))
  old = stale or named.get('old_logprobs', False) or (
      rejection is not None and rejection.target == 'p_ref')
  z, turns = (
      rejection is not None and rejection.scores_z, methods.has_turns(config))
  by_token, every = 'turn' in of_advantage, of_advantage | named
  columns = dict.fromkeys(name for name, wanted in dict(
      old_logprobs=old, anchor_logprobs=config.loss.kl_coef > 0,
      actor_logprobs=old and actor is not None and actor.ppo, z=z,
      **dict.fromkeys(_TOP, top and not z),
      experts=config.loss.replay_experts, generated=turns,
      separate=methods.reward_functions(config) and 'separate' in every,
      turn_rewards=turns and 'turn_rewards' in every,
      temperature=isinstance(config.sampling.temperature, str),
      token_advantages=by_token, **dict.fromkeys(_TURNS, by_token),
      **dict.fromkeys(_OF_TEACHER, methods.teacher_prompt(config)),
  ).items() if wanted)
  flat = config_lib.flatten(config)
  for field in ('advantage', *methods.LOSS):
    view = Table if field == 'advantage' else LearnerBatch
    names = methods.named(config, field)
    for name in sorted(names.keys() & view.declared.keys() - columns.keys()):
      column = view.declared[name]
      if names[name] and column.maker not in ('', 'run') and not (
          column.frozen and column.player in config_lib.players(flat)):
        fix = ('choose another' if plugs.plug(field, flat[field]).packaged else
               'leave it out, or give it the default None')
        raise ValueError(
            f'{field}={flat[field]} needs the column {name}, which this run '
            f'does not have{_MAKERS.get(name, "")}: {fix}.')
      if names[name] and column.maker:
        columns[name] = None
  # A score is of the policy before it learns, or of a frozen player.
  made = [LearnerBatch.declared[name] for name in columns]
  return columns | dict.fromkeys(['old_logprobs'] * any(
      column.player and not column.frozen for column in made))


# What makes a column, for errors.
_MAKERS = {
    **dict.fromkeys(_TOP, ' (off_policy=jackpot with jackpot.target=p_new has '
                    'it)'),
    'turn_rewards': ' (a task with an environment has it)',
    'separate': ' (several functions as task.reward make it)',
    'experts': ' (loss.replay_experts=true makes it)'}
