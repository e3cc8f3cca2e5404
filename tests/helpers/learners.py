"""Calls of a learner's programs with plans of whole batches."""

from typing import Any

import jax
import numpy as np

from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner.options import ACTOR, PLAYERS, POLICY
from jaxrl_llm.learner.packing import Plan
from jaxrl_llm.types import LearnerBatch


class Unnamed:
  """Programs whose states have no names: of the policy, or (policy, actor).

  Attributes:
    programs: LearnerPrograms of which this is a view.
  """

  def __init__(self, programs: learner_lib.LearnerPrograms):
    self.programs = programs
    self.plan, self.plans = programs.plan, programs.plans
    self.state = _bare(programs.state)

  def init(self, *params: Any) -> Any:
    return _bare(self.programs.init(_named(params)))

  def update(self, state: Any, *rest: Any) -> tuple[Any, dict[str, Any]]:
    state, metrics = self.programs.update(_named(state), *rest)
    return _bare(state), metrics

  def score(self, params: Any, *rest: Any) -> Any:
    return self.programs.score(_named(params), *rest)

  def lower(self, name: str, tree: Any, *rest: Any) -> Any:
    """Lowers the program of this name."""
    return getattr(self.programs, name).lower(_named(tree), *rest)


def _unnamed(programs: Any) -> Any:
  return Unnamed(programs) if isinstance(
      programs, learner_lib.LearnerPrograms) else programs


def _named(tree: Any) -> dict[str, Any]:
  return dict(zip(PLAYERS, tree if isinstance(tree, tuple) else (tree,)))


def _bare(tree: dict[str, Any]) -> Any:
  values = tuple(tree[name] for name in PLAYERS if name in tree)
  return values if len(values) > 1 else values[0]


def make(
    model: Any, cfg: learner_lib.LearnerConfig, optimizer: Any, *,
    mesh: Any = None, actor: Any = None, **of_policy: Any) -> Unnamed:
  """Makes the programs of a policy, and perhaps of an actor of this model.

  Both have the optimiser, but the actor only if it learns.
  """
  players = {POLICY: learner_lib.PlayerModel(model, optimizer, **of_policy)}
  if actor:
    players[ACTOR] = learner_lib.PlayerModel(
        actor, optimizer if cfg.actor.learns else None)
  return Unnamed(learner_lib.make_learner(players, cfg, mesh=mesh))


def plan(
    learner: Any, batch: LearnerBatch, prompt: Any = None,
    needed: Any = True) -> Plan:
  """Plans the microbatches of the rows that are needed.

  Args:
    learner: of `learner.make`.
    batch: B rows.
    prompt: [B], equal for rows with the same prompt; None for different ones.
    needed: [B] bool.
  """
  length, prompts = jax.device_get(
      (batch.response_length, batch.prompt_length))
  if prompt is None:
    prompt = np.arange(len(length))
  return learner.plan(
      np.asarray(prompt), prompts, np.where(needed, length, 0))


def update(
    learner: Any, state: Any, batch: LearnerBatch, *rest: Any,
    prompt: Any = None) -> tuple[Any, dict[str, Any]]:
  """Calls `learner.update` with a plan of the rows with a token in the loss."""
  needed = np.any(jax.device_get(batch.mask), 1)
  return _unnamed(learner).update(
      state, batch, plan(learner, batch, prompt, needed), *rest)


def score(
    learner: Any, params: Any, batch: LearnerBatch, *rest: Any,
    prompt: Any = None) -> Any:
  """Calls `learner.score` with a plan of all rows."""
  return _unnamed(learner).score(
      params, batch, plan(learner, batch, prompt), *rest)


def unpadded(metrics):
  """Returns metrics without those of padding, which depends on the lists."""
  return {name: value for name, value in metrics.items()
          if not name.rpartition('/')[2].startswith('real_')}
