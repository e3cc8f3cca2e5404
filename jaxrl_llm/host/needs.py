"""Needs of a run beside its rewards: one value, made when the run is built."""

from typing import NamedTuple

from ml_collections import ConfigDict

from jaxrl_llm.host import batches, methods
from jaxrl_llm.models import experts
from jaxrl_llm.types import Curriculum, Selection


class Needs(NamedTuple):
  """Needs of a run's methods: columns of its rows, and weights.

  A bool says whether there is one; a number is its size, 0 for none.

  Attributes:
    updates_per_round: optimiser steps of a round.
    updates_per_step: the most optimiser steps of a training step.
    old_logprobs: log-probs of the policy before the updates.
    anchor: a frozen model, and its log-probs: the loss has a KL penalty.
    actor_logprobs: log-probs of an actor that is another model, before the
      updates.
    z: normaliser of the rejection, computed by `Learner.score`.
    identity: names of the rows, which seed the rejection's noise.
    top_scored: likeliest tokens of the sampler that `Learner.score` needs.
    top_updated: likeliest tokens of the sampler that updates need.
    behaviour_params: a copy of the parameters that sampled the rows, in
      updates.
    temperature: the temperature of each row: it may differ in a batch.
    turns: which tokens the model wrote itself: an environment answers it.
    rewards: rewards that the advantage gets each by itself.
    experts: form of the experts that the sampler records, or None.
  """
  updates_per_round: int
  updates_per_step: int
  old_logprobs: bool
  anchor: bool
  actor_logprobs: bool
  z: bool
  identity: bool
  top_scored: int
  top_updated: int
  behaviour_params: bool
  temperature: bool
  turns: bool
  rewards: int
  experts: experts.Record | None


def of(
    config: ConfigDict, curriculum: Curriculum, selection: Selection) -> Needs:
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

  Raises:
    ValueError: `loss.replay_experts` meets an environment.
  """
  rejection, actor = methods.rejection(config), methods.actor(config)
  per_round = config.learner.epochs * -(
      -selection.rows // batches.minibatch_rows(config))
  updates = per_round * curriculum.max_rounds
  old = (updates > 1 or curriculum.stale or selection.stale
         or config.actor.lag > 0
         or (rejection is not None and rejection.target == 'p_ref'))
  z = rejection is not None and rejection.scores_z

  def top(wanted):
    return rejection.top_k if rejection and wanted else 0

  return Needs(
      updates_per_round=per_round, updates_per_step=updates,
      old_logprobs=old, anchor=config.loss.kl_coef > 0,
      actor_logprobs=old and actor is not None and actor.ppo, z=z,
      identity=rejection is not None,
      top_scored=top(z and rejection.z == 'topk'),
      top_updated=top(rejection and rejection.needs_top),
      behaviour_params=bool(rejection) and rejection.needs_actor and not (
          actor and (not actor.learns or updates == 1)),
      temperature=isinstance(config.sampling.temperature, str),
      turns=methods.has_turns(config),
      rewards=methods.separate_rewards(config),
      experts=methods.recorded_experts(config))
