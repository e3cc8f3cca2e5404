"""Rewards by a reward model, in place of the verifier's or beside them."""

import dataclasses
from typing import Any, Callable

import numpy as np

from jaxrl_llm import rewards
from jaxrl_llm.learner.options import REWARD
from jaxrl_llm.loop import flops, rollout, scores
from jaxrl_llm.loop.parts import Fixed, Parts
from jaxrl_llm.loop.rollout import Judged, Responses
from jaxrl_llm.monitoring import timing
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.types import AdvantageError, LearnerBatch

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
    timer: seconds and FLOPs per phase.

  Raises:
    VerifierError: a score is not finite, or see `rollout.start_judging`.
    AdvantageError: the advantage cannot take a reward of the verifier.
  """
  if fixed.reward is None:
    found = wait()
    least, settings = np.nanmin([np.inf, *found.reward]), parts.stages.settings
    if least < settings.least_reward:
      raise AdvantageError(
          f'A response has the reward {least:g}, but this advantage takes '
          f'{settings.least_reward:g} or more: choose another one, or shift '
          'the rewards.')
    return found
  with timer('reward'):
    fetch = _start(parts, fixed.reward, responses, timer)
  judged = wait()  # on the host, while the devices compute the scores
  with timer('reward'):
    found = fetch()
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
  return judged._replace(
      reward=reward, verified=judged.reward, verdicts=verdicts, rewards={
          **judged.rewards, MODEL: np.where(judged.valid, found, np.nan),
          VERIFIER: judged.reward})


def _start(
    parts: Parts, params: Any, responses: Responses, timer: timing.Timer,
) -> Callable[[], np.ndarray]:
  """Starts to score responses.

  A response that the stop token of a chat has ended is followed by what its
  format writes there, as in the conversations that reward models learn from.
  The score is that of the last token, see also `RewardPrograms.padding`.

  Returns:
    A function that waits for the scores [R] float64, the same in all processes.
  """
  if not len(responses.shard):
    return lambda: np.zeros(0)
  processes, program = parts.processes, parts.programs.reward
  (_, prompts, requests, _), size = responses.call, parts.programs.scored_rows
  rollouts, here = responses.rollouts, np.flatnonzero(
      processes.here(responses.shard))
  facts, _ = processes.gather_rows(responses.shard, [
      (int(rollouts.length[row]), bool(rollouts.truncated[row]))
      for row in here])
  every, truncated = (np.array(x) for x in zip(*facts))
  closing, more = program.closing, max(len(program.closing) - 1, 0)
  placed = processes.place(
      scores.masked_indices(every > 0, size), responses.shard)
  # Filler has the place of the last row; its length is 0.
  before = prompts.length[requests.prompt]
  timer.note('reward', flops.of_scores(
      [parts.programs.players[REWARD].model], before[every > 0],
      every[every > 0]))
  room = np.where(placed >= 0, (
      every + more * ~truncated)[placed] + 1, 0)
  plan = processes_lib.replicate(program.plan(
      requests.prompt[placed], before[placed], room), processes.learner_mesh)

  positions = processes.positions(size)
  mine, room = placed[positions], room[positions].astype(np.int32)
  length = every[mine]
  response = np.pad(rollouts.tokens[mine], ((0, 0), (0, more)))
  last = np.take_along_axis(
      response, np.maximum(length - 1, 0)[:, None], 1)[:, 0]
  closed = ~truncated[mine] & (last == (*closing, -1)[0])
  for row in np.flatnonzero(closed):
    response[row, length[row]:length[row] + more] = closing[1:]
  tokens, prompt_length = rollout.sequences(
      prompts.tokens[requests.prompt[mine]], before[mine], response)
  number = np.arange(1, response.shape[1] + 1)
  scored = np.max(np.where(
      (number <= (length + more * closed)[:, None]) & (
          response != program.padding), number, 0), axis=1, initial=0)
  mask = np.arange(program.columns) == scored[:, None]
  batch = LearnerBatch(
      tokens=tokens, prompt_length=prompt_length, response_length=room,
      mask=mask & (mine >= 0)[:, None],
      advantages=np.zeros(len(mine), np.float32))
  started = program.scores(params, processes.shard_rows(batch, size), plan)

  def fetch():
    found, own = processes.fetch_rows(started), np.zeros(len(every))
    own[mine[mine >= 0]] = found[mine >= 0]
    return np.array(processes.gather_rows(
        responses.shard, own[here].tolist())[0])

  return fetch
