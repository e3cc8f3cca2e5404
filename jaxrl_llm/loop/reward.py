"""Rewards by a reward model, in place of the verifier's or beside them."""

import dataclasses
from typing import Any, Callable

import numpy as np

from jaxrl_llm import rewards
from jaxrl_llm.loop import rollout, scores
from jaxrl_llm.loop.parts import Fixed, Parts
from jaxrl_llm.loop.rollout import Judged, Responses, VERIFIER
from jaxrl_llm.monitoring import timing
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.types import LearnerBatch

MODEL = 'model'  # name of the scores among the separate rewards


def judged(
    parts: Parts, fixed: Fixed, responses: Responses,
    wait: Callable[[], Judged], timer: timing.Timer) -> Judged:
  """Waits for the verifier, and adds the scores of a reward model.

  With one, rewards are coef * score + verifier * the verifier's reward. All
  processes must call it.

  Args:
    parts: programs and processes.
    fixed: it has the parameters of the reward model, or None.
    responses: R of them.
    wait: () -> the verifier's facts about them. A response on which it failed
      stays without a reward.
    timer: seconds per phase.

  Raises:
    VerifierError: a score is not finite, or see `rollout.start_judging`.
  """
  judged = wait()
  if fixed.reward is None:
    return judged
  with timer('reward'):
    found = _scores(parts, fixed.reward, responses, judged.length)
  wrong = found[~np.isfinite(found)]
  if len(wrong):
    raise rewards.VerifierError(
        f'The reward model gives the score {wrong[0]} to a response: set '
        'reward.model.dtype=float32, or choose another model.')
  coef, of_verifier = parts.stages.settings.reward
  # NaN where the verifier failed, with a factor of 0 too.
  reward = coef * found + of_verifier * judged.reward
  verdicts = [
      dataclasses.replace(verdict, reward=float(reward[row]), rewards={
          **verdict.rewards, MODEL: float(found[row]),
          VERIFIER: verdict.reward}) if verdict.valid else verdict
      for row, verdict in zip(responses.rows.tolist(), judged.verdicts)]
  return judged._replace(reward=reward, verdicts=verdicts, rewards={
      **judged.rewards, MODEL: found, VERIFIER: judged.reward})


def _scores(
    parts: Parts, params: Any, responses: Responses,
    length: np.ndarray) -> np.ndarray:
  """Returns the scores [R] float64 of responses with [R] tokens, the same in
  all processes.
  """
  if not len(length):
    return np.zeros(0)
  processes, program = parts.processes, parts.programs.reward
  (_, prompts, requests, _), size = responses.call, parts.programs.scored_rows
  placed = processes.place(
      scores.masked_indices(length > 0, size), responses.shard)
  # Filler has the place of the last row; its length is 0.
  before = prompts.length[requests.prompt]
  after = np.where(placed >= 0, length[placed] + 1, 0)
  plan = processes_lib.replicate(program.plan(
      requests.prompt[placed], before[placed], after), processes.learner_mesh)
  positions = processes.positions(size)
  mine = placed[positions]
  response = np.pad(responses.rollouts.tokens[mine], ((0, 0), (0, 1)))
  tokens, prompt_length = rollout.sequences(
      prompts.tokens[requests.prompt[mine]], before[mine], response)
  batch = LearnerBatch(
      tokens=tokens, prompt_length=prompt_length,
      response_length=after[positions].astype(np.int32),
      mask=np.zeros(response.shape, bool),
      advantages=np.zeros(len(mine), np.float32))
  found = processes.fetch_rows(program.scores(
      params, processes.shard_rows(batch, size), plan))
  own = np.zeros(len(length))
  own[mine[mine >= 0]] = found[mine >= 0]
  here = np.flatnonzero(processes.here(responses.shard))
  every, _ = processes.gather_rows(responses.shard, own[here].tolist())
  return np.array(every)
