"""Trajectories: calls of the sampler with an environment's steps in between.

A wave of trajectories is one or more calls of the sampler under the same
weights. In each call the model writes a turn of every trajectory that has not
ended; then the environment answers. What a trajectory has is never encoded
again: observations are appended to its tokens. Rows stay at their home: the
shard that sampled the first turn samples all of them, and its processes step
the environment.

A wave that fills the decode slots twice is played in two parts: while the
environment answers one, the model writes the other. Numbers of rows decide
which make a part, never time, so a resumed run makes the same parts.
"""

import collections
import dataclasses
import time
from typing import Any, Callable, NamedTuple, Sequence
import zlib

import numpy as np

from jaxrl_llm import rewards, sharding
from jaxrl_llm.base import phases
from jaxrl_llm.environments import Reply
from jaxrl_llm.loop import rollout
from jaxrl_llm.loop.parts import Parts
from jaxrl_llm.sampling import plan as plan_lib
from jaxrl_llm.types import Requests, Rollouts


class WaveSampling(NamedTuple):
  """Weights, noise and distribution of a wave.

  Attributes:
    sample: from `rollout.host_sampler`.
    params: sampling parameters on device.
    draw: temperature and truncation.
    noise: number of the wave's noise; the same number gives the same responses.
    policy_step: optimiser steps behind `params`.
    slots: responses that `sample` decodes at the same time on a shard.
    step: steps of the run behind `params`, for reward functions.
  """
  sample: Callable[..., tuple[Rollouts, dict[str, int]]]
  params: Any
  draw: Any
  noise: int
  slots: int
  policy_step: int = 0
  step: int = 0


class TurnResult(NamedTuple):
  """Result of a turn and of the environment's step, for all processes.

  Attributes:
    length: tokens of the trajectory before the observation.
    truncated: whether a limit ended the trajectory.
    ids: tokens of the observation; None if the trajectory does not go on.
    reply: of the environment.
  """
  length: int
  truncated: bool
  ids: Sequence[int] | None
  reply: Reply


@dataclasses.dataclass
class _Trajectory:
  """Turns of a trajectory at home in this process, and the latest reply.

  `starts` has the column of the first token of each turn.
  """
  turns: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  starts: list[int] = dataclasses.field(default_factory=list)
  reply: Reply = Reply(None, 0.0)

  def verdict(self, rewarded: bool) -> rewards.Verdict | None:
    """Returns the verdict; None if the task is to judge the last turn.

    Args:
      rewarded: whether the environment gives the reward, the sum over the
        turns.
    """
    if self.reply.kind != 'turn':
      return rewards.Verdict(0.0, self.reply.kind, False, self.reply.detail)
    if not rewarded:
      return None
    reward = float(sum(turn['reward'] for turn in self.turns))
    if not abs(reward) <= rewards.LARGEST:
      return rewards.Verdict(0.0, 'error', False, f'the reward is {reward:g}')
    return rewards.Verdict(
        reward, 'correct' if reward >= 1 else 'partial' if reward > 0
        else 'wrong')

  @property
  def text(self) -> str:
    """Texts of the model, with observations in brackets."""
    return ' '.join(f'{turn["text"]} [{turn["observation"]}]' if (
        turn['observation']) else turn['text'] for turn in self.turns)


class _Wave:
  """Trajectories of a wave, of which some are unfinished.

  Attributes:
    tokens: [R, T] int32; `arrays` has them and the other numbers of tokens.
    length, count: [R] int32, tokens and turns so far.
    truncated: [R] bool.
    wrote: [R, T] bool, tokens of the model.
    ended: number of rows that do not go on.
    shard: [R] data shard that samples each.
    said: row to trajectory, of those at home in this process.
  """

  def __init__(self, parts: Parts, call: rollout.SampleCall, noise: int):
    """Makes the wave before its first turn; the arguments are those of `play`,
    and the number of its noise.
    """
    self._parts, self._call, self._noise = parts, call, noise
    self._turns, rows = parts.task.turns, len(call.requests.prompt)
    shape = rows, parts.stages.settings.max_response
    self.tokens, self.wrote = np.zeros(shape, np.int32), np.zeros(shape, bool)
    self.length, self.count = np.zeros((2, rows), np.int32)
    self.truncated = np.zeros(rows, bool)
    self.ended = 0
    self.arrays = {'tokens': self.tokens}
    self.shard = plan_lib.shard_of(
        rows, sharding.data_shards(parts.processes.mesh))
    self.said = {row: _Trajectory() for row in np.flatnonzero(
        parts.processes.here(self.shard)).tolist()}

  def ask(self, rows: np.ndarray) -> Requests:
    """Returns the requests of the next turn of rows."""
    requests, done = self._call.requests, self.length[rows]
    most = self._turns.limits.turn
    most = self.tokens.shape[1] if most is None else most
    return Requests(
        prompt=requests.prompt[rows], sample=requests.sample[rows],
        budget=np.minimum(done + most, requests.budget[rows]),
        done=done, tokens=self.tokens[rows],
        birth=np.full(len(rows), self._noise, np.int32))

  def add(self, rows: np.ndarray, rollouts: Rollouts) -> None:
    """Adds a turn to rows; zeros where not at home."""
    columns = np.arange(self.tokens.shape[1])
    new = (columns >= self.length[rows, None]) & (
        columns < rollouts.length[:, None])
    self.wrote[rows] |= new
    for name, added in rollouts.columns.items():
      if rollouts.declared[name].axes[-1:] == 'T':
        have = self.arrays.setdefault(name, np.zeros(
            (len(self.length), *added.shape[1:]), added.dtype))
        have[rows] += np.where(
            new if added.ndim == 2 else new[:, None], added, 0)

  def rollouts(self, policy_step: int) -> Rollouts:
    """Returns the trajectories as rollouts."""
    requests = self._call.requests
    return Rollouts(
        length=self.length, truncated=self.truncated,
        problem_id=self._call.prompts.problem_id[requests.prompt],
        sample=requests.sample,
        policy_step=np.full(len(self.length), policy_step, np.int32),
        generated=self.wrote, **self.arrays)

  def answer(
      self, rows: np.ndarray, rollouts: Rollouts) -> Callable[[], np.ndarray]:
    """Starts the environment's steps for the rows and rollouts of a call.

    Returns:
      A function that waits for the answers, adds them, and returns the rows
      that go on. All processes must call it: the homes of the rows tell the
      others the answers.
    """
    mine = [i for i, row in enumerate(rows.tolist()) if row in self.said]
    for i in mine:
      row, trajectory = rows[i], self.said[rows[i]]
      start = int(self.length[row])
      trajectory.starts.append(start)
      # Decoding leaves out the stop token or text.
      text = self._parts.task.tokenizer.decode(
          self.tokens[row, start:rollouts.length[i]])
      trajectory.turns.append(dict(text=text, observation='', reward=0.0))

    started, processes = rollout.Attempt([]), self._parts.processes
    if processes.leads:
      started = rollout.attempted(lambda: [
          self._submit(row) for row in rows[mine].tolist()])

    def wait():
      found, error = started if started.error else rollout.attempted(lambda: [
          self._result(rows[i], int(rollouts.length[i]),
                       bool(rollouts.truncated[i]), reply())
          for i, reply in zip(mine, started.value)])
      results, errors = processes.gather_rows(
          self.shard[rows], found or [None] * len(mine), error)
      rollout.raise_first(errors)
      return self._note(rows, results)

    return wait

  def _submit(self, row: int) -> Callable[[], Reply]:
    """Starts the step of the latest turn of a row."""
    requests, turns = self._call.requests, self.said[row].turns
    problem = self._call.problems[requests.prompt[row]]
    number = int(requests.sample[row])
    return self._turns.submit(
        problem,
        seed_of(self._parts.stages.settings.seed, problem.id, number),
        [turn['text'] for turn in turns],
        [turn['observation'] for turn in turns[:-1]])

  def _result(
      self, row: int, length: int, cut: bool, reply: Reply) -> TurnResult:
    """Returns the result of a row's turn.

    Args:
      row: with the length before the turn.
      length: tokens after it.
      cut: whether a limit ended it.
      reply: of the environment.
    """
    if reply.observation is None or cut:
      return TurnResult(length, cut, None, reply)
    start, limits = int(self.length[row]), self._turns.limits
    kept, ids = self._turns.follow(
        self._parts.task.tokenizer, reply.observation,
        self.tokens[row, start:length].tolist())
    # A turn needs room for a token.
    if (self.count[row] + 1 >= limits.turns
        or start + kept + len(ids) >= self._call.requests.budget[row]):
      return TurnResult(length, True, None, reply)
    return TurnResult(start + kept, False, ids, reply)

  def _note(
      self, rows: np.ndarray, results: Sequence[TurnResult]) -> np.ndarray:
    """Adds the results of the turns of rows; returns the rows that go on."""
    going = []
    for row, result in zip(rows.tolist(), results):
      self.length[row], self.truncated[row] = result.length, result.truncated
      self.count[row] += 1
      if row in self.said:
        self.said[row].reply = result.reply
        self.said[row].turns[-1].update(
            observation=result.reply.observation or '',
            reward=result.reply.reward)
      if result.ids is not None:
        columns = slice(result.length, result.length + len(result.ids))
        # The observation may be over a token that does not stay.
        for array in (self.wrote, *self.arrays.values()):
          array[row, ..., columns] = 0
        self.tokens[row, columns] = result.ids
        self.length[row] += len(result.ids)
        going.append(row)
    self.ended += len(rows) - len(going)
    return np.array(going, int)


def seed_of(seed: int, problem: int, sample: int) -> int:
  """Returns the seed of a trajectory, by the run's, problem and sample."""
  return zlib.crc32(f'{seed} {problem} {sample}'.encode()) >> 1


def respond(
    parts: Parts, call: rollout.SampleCall, sampling: WaveSampling,
) -> tuple[rollout.Responses, Callable[[], Callable[[], rollout.Judged]]]:
  """Samples responses, or trajectories where the task has an environment.

  Args:
    parts: task, processes and keys.
    call: prompts and requests of R responses.
    sampling: how to sample.

  Returns:
    The responses, and a function that starts to judge them and returns one that
    waits for the verdicts, see `rollout.start_judging`.
  """
  task, processes = parts.task, parts.processes
  if getattr(task, 'turns', None):
    responses = play(parts, call, sampling)
  else:
    responses = rollout.respond(
        sampling.sample, sampling.params, call, parts.step_key(
            parts.replicate(np.uint32(sampling.noise))), sampling.draw,
        tokenizer=task.tokenizer, processes=processes,
        policy_step=sampling.policy_step)
  return responses, lambda: rollout.start_judging(
      task, responses, processes, sampling.step, parts.stages.settings.steps)


def play(
    parts: Parts, call: rollout.SampleCall, sampling: WaveSampling,
) -> rollout.Responses:
  """Samples whole trajectories; see the top of this file.

  Args:
    parts: environment, key and processes.
    call: prompts and requests of R trajectories.
    sampling: how to sample.

  Returns:
    Responses, whose tokens and texts have the observations in their places. The
    reward of a verdict is the sum over the turns. A trajectory whose
    environment failed has the verdict 'error' or 'timeout', and is not valid.

  Raises:
    rewards.VerifierError: an environment answers earlier turns in another way
      than before.
  """
  wave = _Wave(parts, call, sampling.noise)
  use, waited, began = collections.Counter(), 0.0, time.monotonic()
  waiting = collections.deque((lambda part=part: part) for part in _parts(
      wave.shard, sampling.slots))
  with phases.phase('sampling', len(wave.length), 'trajectories') as phase:
    while waiting:
      at = time.monotonic()
      rows = waiting.popleft()()
      if waiting and _fewest(wave.shard[rows], wave.shard) < sampling.slots:
        rows = np.sort(np.concatenate([rows, waiting.popleft()()]))
      waited += time.monotonic() - at
      phase.count(wave.ended)
      # A wave without rows is a call too: it says which arrays there are.
      if len(rows) or not use:
        rollouts, more = sampling.sample(
            sampling.params, call.prompts, wave.ask(rows), parts.key,
            sampling.draw, policy_step=sampling.policy_step,
            shard=wave.shard[rows])
        use.update(more)
        wave.add(rows, rollouts)
        waiting.append(wave.answer(rows, rollouts))
  trajectories = [*wave.said.values()]
  return rollout.Responses(
      call, wave.rollouts(sampling.policy_step), np.array([*wave.said], int),
      [trajectory.text for trajectory in trajectories], wave.shard, {**use},
      sampling.policy_step, rollout.PlayedTurns(
          [trajectory.turns for trajectory in trajectories],
          [trajectory.starts for trajectory in trajectories],
          [trajectory.verdict(parts.task.turns.rewards)
           for trajectory in trajectories],
          [trajectory.reply.observation is not None
           for trajectory in trajectories], wave.count,
          waited / max(time.monotonic() - began, 1e-9)))


def _fewest(shard: np.ndarray, all_shards: np.ndarray) -> int:
  """Returns the least number of rows on a shard, of those that have any."""
  used = np.unique(all_shards)
  return min((np.count_nonzero(shard == number) for number in used), default=0)


def _parts(shard: np.ndarray, slots: int) -> list[np.ndarray]:
  """Returns the rows of the parts of a wave, with halves of each shard's."""
  if _fewest(shard, shard) < 2 * slots:
    return [np.arange(len(shard))]
  second = np.concatenate([
      rows[len(rows) // 2:] for rows in (
          np.flatnonzero(shard == number) for number in np.unique(shard))])
  return [np.setdiff1d(np.arange(len(shard)), second), second]
