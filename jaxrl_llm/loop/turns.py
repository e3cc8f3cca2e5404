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
import json
import time
from typing import Any, Callable, NamedTuple, Sequence
import zlib

import jax
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


class Progress(NamedTuple):
  """Trajectories of R rows as far as they are.

  Attributes:
    rollouts: their tokens, with `generated`; zeros where not at home.
    start: [R] int32, first column of the turn that is not done.
    count: [R] int32, turns that are done.
    ended: [R] bool, whether they do not go on.
    said: [R] texts of turns and starts, as JSON; '' where there is none, or not
      at home.
  """
  rollouts: Rollouts
  start: np.ndarray
  count: np.ndarray
  ended: np.ndarray
  said: list[str]


class TurnResult(NamedTuple):
  """Result of a turn and of the environment's step, for all processes.

  Attributes:
    length: tokens of the trajectory before the observation.
    truncated: whether a limit ended the trajectory.
    ids: tokens of the observation; None if the trajectory does not go on.
    reply: of the environment; None if the wave ended before the turn.
  """
  length: int
  truncated: bool
  ids: Sequence[int] | None
  reply: Reply | None


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
    done: [R] int32, tokens so far.
    length, count: [R] int32, tokens and turns before the turn that is not done.
    truncated: [R] bool.
    wrote: [R, T] bool, tokens of the model.
    match: [R] int32, see `Requests`; None if no wave ends before its turns.
    ended: [R] bool, whether the row does not go on.
    shard: [R] data shard that samples each.
    said: row to trajectory, of those at home in this process.
  """

  def __init__(
      self, parts: Parts, call: rollout.SampleCall, shard: np.ndarray,
      progress: Progress | None = None):
    """Makes the wave before its first turn, or after some progress.

    Args:
      parts: those of `play`.
      call: that of `play`; its requests have the number of their noise.
      shard: [R] data shard that samples each.
      progress: of R rows, before the wave.
    """
    self._parts, self._call, self.shard = parts, call, shard
    self._turns, rows = parts.task.turns, len(shard)
    self.truncated, self.ended = np.zeros((2, rows), bool)
    self.match, said = None, [''] * rows
    if progress is None:
      shape = rows, parts.stages.settings.max_response
      self.wrote = np.zeros(shape, bool)
      self.arrays = {'tokens': np.zeros(shape, np.int32)}
      self.length, self.count, self.done = np.zeros((3, rows), np.int32)
    else:
      held = jax.tree.map(np.copy, progress.rollouts)
      self.wrote, self.match, said = held.generated, held.match, progress.said
      self.arrays = {
          name: x for name, x in held.columns.items()
          if held.declared[name].axes[-1:] == 'T' and name != 'generated'}
      self.done, self.length, self.count = (
          held.length, progress.start.copy(), progress.count.copy())
    self.tokens = self.arrays['tokens']
    self.said = {
        row: _Trajectory(**json.loads(said[row] or '{}'))
        for row in np.flatnonzero(parts.processes.here(shard)).tolist()}

  def _limit(self, rows: np.ndarray) -> np.ndarray:
    """Returns the most tokens of rows after the turn that is not done."""
    most = self._turns.limits.turn
    most = self.tokens.shape[1] if most is None else most
    return np.minimum(
        self.length[rows] + most, self._call.requests.budget[rows])

  def ask(self, rows: np.ndarray) -> Requests:
    """Returns the requests of the next turn of rows, or of its rest."""
    requests = self._call.requests
    return Requests(
        prompt=requests.prompt[rows], sample=requests.sample[rows],
        budget=self._limit(rows), done=self.done[rows],
        tokens=self.tokens[rows], birth=requests.birth[rows],
        match=None if self.match is None else self.match[rows])

  def add(self, rows: np.ndarray, rollouts: Rollouts) -> None:
    """Adds a turn to rows, or a part of it; zeros where not at home."""
    columns = np.arange(self.tokens.shape[1])
    new = (columns >= self.done[rows, None]) & (
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
    whole = (rollouts.length > 0) & ~(
        rollouts.truncated & (rollouts.length < self._limit(rows)))
    if self.match is not None:
      self.match[rows] = np.where(whole, 0, np.where(
          rollouts.length > 0, rollouts.match, self.match[rows]))
    ended = [i for i in mine if whole[i]]
    for i in ended:
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
          self._submit(row) for row in rows[ended].tolist()])

    def wait():
      found, error = started if started.error else rollout.attempted(lambda: {
          i: self._result(rows[i], int(rollouts.length[i]),
                          bool(rollouts.truncated[i]), reply())
          for i, reply in zip(ended, started.value)})
      results, errors = processes.gather_rows(self.shard[rows], [
          (found or {}).get(i) or TurnResult(
              max(int(rollouts.length[i]), int(self.done[rows[i]])), False,
              None, None) for i in mine], error)
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
      self.done[row] = result.length
      if result.reply is None:
        continue
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
        self.done[row] = self.length[row]
        going.append(row)
      self.ended[row] = result.ids is None
    return np.array(going, int)

  def at_home(self, rows: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Returns which of rows are at home here, by their place, and their texts.
    """
    here = [i for i, row in enumerate(rows.tolist()) if row in self.said]
    return np.array(here, int), [self.said[rows[i]].text for i in here]

  def played(self, rows: np.ndarray, waited: float) -> rollout.PlayedTurns:
    """Returns the turns of rows; `waited` is that of PlayedTurns."""
    trajectories = [
        self.said[row] for row in rows.tolist() if row in self.said]
    return rollout.PlayedTurns(
        [trajectory.turns for trajectory in trajectories],
        [trajectory.starts for trajectory in trajectories],
        [trajectory.verdict(self._turns.rewards)
         for trajectory in trajectories],
        [trajectory.reply.observation is not None
         for trajectory in trajectories], self.count[rows], waited)

  def progress(self) -> Progress:
    """Returns the trajectories as far as they are."""
    said = [''] * len(self.shard)
    for row, trajectory in self.said.items():
      said[row] = json.dumps(dict(
          turns=trajectory.turns, starts=trajectory.starts))
    rollouts = Rollouts(
        length=self.done, truncated=self.truncated, generated=self.wrote,
        match=self.match, **self.arrays)
    return Progress(rollouts, self.length, self.count, self.ended, said)


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
  rows = len(call.requests.prompt)
  noise = np.full(rows, sampling.noise, np.int32)
  call = call._replace(requests=call.requests.replace(birth=noise))
  wave = _Wave(parts, call, plan_lib.shard_of(
      rows, sharding.data_shards(parts.processes.mesh)))
  use, waited = _serve(wave, call, sampling, parts)
  every = np.arange(rows)
  return rollout.Responses(
      call, wave.rollouts(sampling.policy_step), *wave.at_home(every),
      wave.shard, use, sampling.policy_step, wave.played(every, waited))


def play_on(
    parts: Parts, call: rollout.SampleCall, sampling: WaveSampling,
    shard: np.ndarray, progress: Progress,
) -> tuple[Progress, Callable[[np.ndarray], Any], dict[str, int]]:
  """Plays trajectories on, for the decode steps of a wave.

  Args:
    parts, call, sampling: those of `play`.
    shard: [R] data shard that samples each.
    progress: of the R trajectories.

  Returns:
    Their progress; a function from numbers of rows that have ended to their
    rows at home, their texts and PlayedTurns; and counts, as in Responses.
  """
  wave = _Wave(parts, call, shard, progress)
  use, waited = _serve(
      wave, call, sampling, parts, parts.stages.settings.carry.steps)
  return wave.progress(), lambda rows: (
      *wave.at_home(rows), wave.played(rows, waited)), use


def _serve(
    wave: _Wave, call: rollout.SampleCall, sampling: WaveSampling,
    parts: Parts, steps: int | None = None) -> tuple[dict[str, int], float]:
  """Plays the rows of a wave, all to their end or for some decode steps.

  Returns:
    Counts, as in Responses, and the share of the seconds that were waited for
    the environment.
  """
  use, waited, began = collections.Counter(), 0.0, time.monotonic()
  left = steps
  waiting = collections.deque((lambda part=part: part) for part in _parts(
      wave.shard, sampling.slots))
  with phases.phase('sampling', len(wave.length), 'trajectories') as phase:
    while waiting:
      at = time.monotonic()
      rows = waiting.popleft()()
      if waiting and _fewest(wave.shard[rows], wave.shard) < sampling.slots:
        rows = np.sort(np.concatenate([rows, waiting.popleft()()]))
      waited += time.monotonic() - at
      phase.count(int(wave.ended.sum()))
      # A wave without rows is a call too: it says which arrays there are.
      if (len(rows) or not use) and left != 0:
        rollouts, more = sampling.sample(
            sampling.params, call.prompts, wave.ask(rows), parts.key,
            sampling.draw, policy_step=sampling.policy_step,
            shard=wave.shard[rows],
            **({} if left is None else {'max_steps': left}))
        if left is not None:  # in all processes the same
          left -= max(parts.processes.channel.gather(more['steps']))
        use.update(more)
        wave.add(rows, rollouts)
        waiting.append(wave.answer(rows, rollouts))
  return {**use}, waited / max(time.monotonic() - began, 1e-9)


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
