"""Rewards by a reward model, in place of the verifier's or beside them."""

import dataclasses
from typing import Any, Callable

import numpy as np

from jaxrl_llm import rewards
from jaxrl_llm.loop import rollout, scores
from jaxrl_llm.loop.parts import Fixed, Parts
from jaxrl_llm.loop.rollout import Judged, Responses
from jaxrl_llm.monitoring import timing
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.types import LearnerBatch

MODEL, VERIFIER = 'model', 'verifier'  # names among the separate rewards


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
    found = _scores(parts, fixed.reward, responses, judged)
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
          MODEL: float(found[row]), VERIFIER: verdict.reward,
          **verdict.rewards}) if verdict.valid else verdict
      for row, verdict in zip(responses.rows.tolist(), judged.verdicts)]
  return judged._replace(
      reward=reward, verified=judged.reward, verdicts=verdicts, rewards={
          MODEL: np.where(judged.valid, found, np.nan),
          VERIFIER: judged.reward, **judged.rewards})


def _scores(
    parts: Parts, params: Any, responses: Responses,
    judged: Judged) -> np.ndarray:
  """Returns the scores [R] float64 of responses, the same in all processes.

  A response that the stop token of a chat has ended is followed by what its
  format writes there, as in the conversations that reward models learn from.
  The score is that of the last token.
  """
  if not len(judged.length):
    return np.zeros(0)
  processes, program = parts.processes, parts.programs.reward
  (_, prompts, requests, _), size = responses.call, parts.programs.scored_rows
  closing, more = program.closing, max(len(program.closing) - 1, 0)
  placed = processes.place(
      scores.masked_indices(judged.length > 0, size), responses.shard)
  # Filler has the place of the last row; its length is 0.
  before = prompts.length[requests.prompt]
  room = np.where(placed >= 0, (
      judged.length + more * ~judged.truncated)[placed] + 1, 0)
  plan = processes_lib.replicate(program.plan(
      requests.prompt[placed], before[placed], room), processes.learner_mesh)

  positions = processes.positions(size)
  mine, room = placed[positions], room[positions].astype(np.int32)
  length = judged.length[mine]
  response = np.pad(responses.rollouts.tokens[mine], ((0, 0), (0, more)))
  last = np.take_along_axis(
      response, np.maximum(length - 1, 0)[:, None], 1)[:, 0]
  closed = ~judged.truncated[mine] & (last == (*closing, -1)[0])
  for row in np.flatnonzero(closed):
    response[row, length[row]:length[row] + more] = closing[1:]
  tokens, prompt_length = rollout.sequences(
      prompts.tokens[requests.prompt[mine]], before[mine], response)
  mask = np.arange(program.columns) == (length + more * closed)[:, None]
  batch = LearnerBatch(
      tokens=tokens, prompt_length=prompt_length, response_length=room,
      mask=mask & (mine >= 0)[:, None],
      advantages=np.zeros(len(mine), np.float32))
  found = processes.fetch_rows(program.scores(
      params, processes.shard_rows(batch, size), plan))
  own = np.zeros(len(judged.length))
  own[mine[mine >= 0]] = found[mine >= 0]
  here = np.flatnonzero(processes.here(responses.shard))
  every, _ = processes.gather_rows(responses.shard, own[here].tolist())
  return np.array(every)
