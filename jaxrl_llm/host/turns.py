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

import jax
import numpy as np

from jaxrl_llm import rewards, sharding
from jaxrl_llm.base import phases
from jaxrl_llm.base.tokenizer import Tokenizer
from jaxrl_llm.environments import Limits, Reply
from jaxrl_llm.environments.turns import Turns
from jaxrl_llm.host import build, rollout
from jaxrl_llm.sampling import plan as plan_lib
from jaxrl_llm.sharding.processes import Processes
from jaxrl_llm.types import Requests, Rollouts

# Arrays of rollouts with a number for each token, on the last axis.
_BY_TOKEN = ('tokens', 'logprobs', 'entropy', 'tempered_logprobs', 'top_ids',
             'top_logprobs')


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


class WaveSetting(NamedTuple):
  """Values that all waves of a run share.

  Attributes:
    key: PRNG key of the run.
    seed: of the run; with problem and sample it is a trajectory's.
    columns: T, most tokens of a trajectory.
    tokenizer: of the task.
    processes: who holds which rows.
  """
  key: jax.Array
  seed: int
  columns: int
  tokenizer: Tokenizer
  processes: Processes


class TurnResult(NamedTuple):
  """Result of a turn and of the environment's step, for all processes.

  Attributes:
    length: tokens of the trajectory before the observation.
    truncated: whether a limit ended the trajectory.
    ids: tokens of the observation; None if the trajectory does not go on.
    observation: its text; None without one.
    reward: of the step.
    kind: of the reply, see `environments.Reply`.
    detail: of the reply.
  """
  length: int
  truncated: bool
  ids: Sequence[int] | None = None
  observation: str | None = None
  reward: float = 0.0
  kind: str = ''
  detail: str = ''


@dataclasses.dataclass
class _Trajectory:
  """Turns of a trajectory at home in this process, and how it ended.

  `starts` has the column of the first token of each turn.
  """
  turns: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  kind: str = ''
  detail: str = ''
  answered: bool = False  # the environment had something to say to the last one
  starts: list[int] = dataclasses.field(default_factory=list)

  def said(self, what: str) -> list[str]:
    """Returns the texts, or the observations, of all turns."""
    return [turn[what] for turn in self.turns]

  def verdict(self, rewarded: bool) -> rewards.Verdict | None:
    """Returns the verdict; None if the task is to judge the last turn.

    Args:
      rewarded: whether the environment gives the reward, the sum over the
        turns.
    """
    if self.kind != 'turn':
      return rewards.Verdict(0.0, self.kind, False, self.detail)
    if not rewarded:
      return None
    reward = float(sum(turn['reward'] for turn in self.turns))
    if not abs(reward) <= rewards.LARGEST:
      return rewards.Verdict(
          0.0, 'error', False, f'the reward is {reward:g}')
    return rewards.Verdict(
        reward, 'correct' if reward >= 1 else 'partial' if reward > 0
        else 'wrong')

  @property
  def text(self) -> str:
    """Texts of the model, with observations in brackets."""
    return ' '.join(f'{turn["text"]} [{turn["observation"]}]' if (
        turn['observation']) else turn['text'] for turn in self.turns)


class _Wave:
  """Rows of a wave, of which some are unfinished.

  Attributes:
    tokens: [R, T] int32, and `arrays`, the other numbers of tokens.
    length, count: [R] int32, tokens and turns so far.
    truncated: [R] bool.
    wrote: [R, T] bool, tokens of the model.
    ended: number of rows that do not go on.
    noise: its number.
  """

  def __init__(self, call: rollout.SampleCall, columns: int, noise: int):
    rows = len(call.requests.prompt)
    self.requests, self.noise = call.requests, noise
    self.tokens = np.zeros((rows, columns), np.int32)
    self.wrote = np.zeros((rows, columns), bool)
    self.length, self.count = np.zeros((2, rows), np.int32)
    self.truncated = np.zeros(rows, bool)
    self.ended = 0
    self.arrays: dict[str, np.ndarray] = {}

  def ask(self, rows: np.ndarray, limits: Limits) -> Requests:
    """Returns the requests of the next turn of rows."""
    done = self.length[rows]
    most = self.tokens.shape[1] if limits.turn is None else limits.turn
    return Requests(
        prompt=self.requests.prompt[rows], sample=self.requests.sample[rows],
        budget=np.minimum(done + most, self.requests.budget[rows]),
        done=done, tokens=self.tokens[rows],
        birth=np.full(len(rows), self.noise, np.int32))

  def add(self, rows: np.ndarray, rollouts: Rollouts) -> None:
    """Adds a turn to rows; zeros where not at home."""
    columns = np.arange(self.tokens.shape[1])
    new = (columns >= self.length[rows, None]) & (
        columns < rollouts.length[:, None])
    self.wrote[rows] |= new
    for name in _BY_TOKEN:
      added = getattr(rollouts, name)
      if added is None:
        continue
      if name == 'tokens':
        self.tokens[rows] += np.where(new, added, 0)
        continue
      have = self.arrays.setdefault(name, np.zeros(
          (len(self.length), *added.shape[1:]), added.dtype))
      have[rows] += np.where(
          new if added.ndim == 2 else new[:, None], added, 0)

  def rollouts(self, call: rollout.SampleCall, policy_step: int) -> Rollouts:
    """Returns the trajectories as rollouts."""
    return Rollouts(
        tokens=self.tokens, length=self.length, truncated=self.truncated,
        problem_id=call.prompts.problem_id[self.requests.prompt],
        sample=self.requests.sample,
        policy_step=np.full(len(self.length), policy_step, np.int32),
        generated=self.wrote, **self.arrays)

  def append(self, row: int, ids: Sequence[int]) -> None:
    """Appends an observation to a row, over a token that does not stay."""
    columns = slice(self.length[row], self.length[row] + len(ids))
    for array in (self.wrote, *self.arrays.values()):
      array[row, ..., columns] = 0
    self.tokens[row, columns] = ids
    self.length[row] += len(ids)


def seed_of(seed: int, problem: int, sample: int) -> int:
  """Returns the seed of a trajectory, by the run's, problem and sample."""
  return zlib.crc32(f'{seed} {problem} {sample}'.encode()) >> 1


def respond(
    parts: build.Parts, call: rollout.SampleCall, sampling: WaveSampling,
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
    responses = play(task.turns, call, sampling, WaveSetting(
        parts.key, parts.config.seed, parts.config.max_response,
        task.tokenizer, processes))
  else:
    responses = rollout.respond(
        sampling.sample, sampling.params, call, parts.step_key(
            parts.replicate(np.uint32(sampling.noise))), sampling.draw,
        tokenizer=task.tokenizer, processes=processes,
        policy_step=sampling.policy_step)
  return responses, lambda: rollout.start_judging(
      task, responses, processes, sampling.step, parts.config.steps)


def play(
    turns: Turns, call: rollout.SampleCall, sampling: WaveSampling,
    run: WaveSetting,
) -> rollout.Responses:
  """Samples whole trajectories; see the top of this file.

  Args:
    turns: environment, and limits of trajectories.
    call: prompts and requests of R trajectories.
    sampling: how to sample.
    run: values that all waves share.

  Returns:
    Responses, whose tokens and texts have the observations in their places. The
    reward of a verdict is the sum over the turns. A trajectory whose
    environment failed has the verdict 'error' or 'timeout', and is not valid.

  Raises:
    rewards.VerifierError: an environment answers earlier turns in another way
      than before.
  """
  wave = _Wave(call, run.columns, sampling.noise)
  shard = plan_lib.shard_of(
      len(wave.length), sharding.data_shards(run.processes.mesh))
  here = run.processes.here(shard)
  said = {row: _Trajectory() for row in np.flatnonzero(here).tolist()}
  use, waited, began = collections.Counter(), 0.0, time.monotonic()
  parts = collections.deque(
      (lambda part=part: part) for part in _parts(shard, sampling.slots))
  with phases.phase(
      'sampling', len(wave.length), 'trajectories') as phase:
    while parts:
      at = time.monotonic()
      rows = parts.popleft()()
      if parts and _fewest(shard[rows], shard) < sampling.slots:
        rows = np.sort(np.concatenate([rows, parts.popleft()()]))
      waited += time.monotonic() - at
      phase.count(wave.ended)
      # A wave without rows is a call too: it says which arrays there are.
      if len(rows) or not use:
        rollouts, more = sampling.sample(
            sampling.params, call.prompts, wave.ask(rows, turns.limits),
            run.key, sampling.draw, policy_step=sampling.policy_step,
            shard=shard[rows])
        use.update(more)
        wave.add(rows, rollouts)
        parts.append(_answer(
            turns, wave, (rows, rollouts), said, call, run, shard))
  rows = np.flatnonzero(here)
  trajectories = [said[row] for row in rows.tolist()]
  return rollout.Responses(
      call, wave.rollouts(call, sampling.policy_step), rows,
      [trajectory.text for trajectory in trajectories], shard, {**use},
      sampling.policy_step, rollout.PlayedTurns(
          [trajectory.turns for trajectory in trajectories],
          [trajectory.starts for trajectory in trajectories],
          [trajectory.verdict(turns.rewards) for trajectory in trajectories],
          [trajectory.answered for trajectory in trajectories], wave.count,
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


def _answer(
    turns: Turns, wave: _Wave, turn: tuple[np.ndarray, Rollouts],
    said: dict[int, _Trajectory], call: rollout.SampleCall, run: WaveSetting,
    shard: np.ndarray) -> Callable[[], np.ndarray]:
  """Starts the environment's steps for the rows and rollouts of a call.

  Returns:
    A function that waits for the answers, adds them to `wave` and `said`, and
    returns the rows that go on. All processes must call it: the homes of the
    rows tell the others the answers.
  """
  rows, rollouts = turn
  mine = [i for i, row in enumerate(rows.tolist()) if row in said]
  _note_texts(wave, turn, said, run.tokenizer, mine)
  started = rollout.Attempt([])
  if run.processes.leads:
    started = rollout.attempted(lambda: _submitted(
        turns, wave, said, call, run.seed, rows[mine]))

  def wait():
    found, error = started if started.error else rollout.attempted(lambda: [
        _result(turns, wave, turn, i, answer(), run.tokenizer)
        for i, answer in zip(mine, started.value)])
    results, errors = run.processes.gather_rows(
        shard[rows], found or [None] * len(mine), error)
    rollout.raise_first(errors)
    return _noted(wave, rows, said, results)

  return wait


def _noted(
    wave: _Wave, rows: np.ndarray, said: dict[int, _Trajectory],
    results: Sequence[TurnResult]) -> np.ndarray:
  """Adds the results of the turns of rows; returns the rows that go on."""
  going = []
  for row, result in zip(rows.tolist(), results):
    wave.length[row], wave.truncated[row] = result.length, result.truncated
    wave.count[row] += 1
    if row in said:
      said[row].turns[-1].update(
          observation=result.observation or '', reward=result.reward)
      said[row].kind, said[row].detail = result.kind, result.detail
      said[row].answered = result.observation is not None
    if result.ids is not None:
      wave.append(row, result.ids)
      going.append(row)
  wave.ended += len(rows) - len(going)
  return np.array(going, int)


def _note_texts(
    wave: _Wave, turn: tuple[np.ndarray, Rollouts],
    said: dict[int, _Trajectory], tokenizer: Tokenizer, mine: Sequence[int],
) -> None:
  """Adds the turns of a call to `said`.

  Args:
    wave: with the tokens of the call, and the lengths before it.
    turn: rows and rollouts of the call.
    said: trajectories at home in this process.
    tokenizer: of the task.
    mine: places of these among the rows.
  """
  rows, rollouts = turn
  for i in mine:
    row = rows[i]
    start = int(wave.length[row])
    said[row].starts.append(start)
    # Decoding leaves out the stop token or text.
    text = tokenizer.decode(wave.tokens[row, start:rollouts.length[i]])
    said[row].turns.append(dict(text=text, observation='', reward=0.0))


def _submitted(
    turns: Turns, wave: _Wave, said: dict[int, _Trajectory],
    call: rollout.SampleCall, seed: int, rows: np.ndarray,
) -> list[Callable[[], Reply]]:
  """Starts the steps of the turns of rows, see `_note_texts`."""
  problems, waits = call.problem(), []
  for row in rows.tolist():
    problem, trajectory = problems[row], said[row]
    waits.append(turns.submit(
        problem, seed_of(seed, problem.id, int(call.requests.sample[row])),
        trajectory.said('text'), trajectory.said('observation')[:-1]))
  return waits


def _result(
    turns: Turns, wave: _Wave, turn: tuple[np.ndarray, Rollouts], i: int,
    reply: Reply, tokenizer: Tokenizer) -> TurnResult:
  """Returns the result of turn i of a call."""
  row, rollouts = turn[0][i], turn[1]
  length, cut = int(rollouts.length[i]), bool(rollouts.truncated[i])
  if reply.kind != 'turn':
    return TurnResult(length, cut, kind=reply.kind, detail=reply.detail)
  ids = None
  if reply.observation is not None and not cut:
    start = int(wave.length[row])
    kept, ids = turns.follow(
        tokenizer, reply.observation, wave.tokens[row, start:length].tolist())
    # A turn needs room for a token.
    if (wave.count[row] + 1 >= turns.limits.turns
        or start + kept + len(ids) >= wave.requests.budget[row]):
      ids, cut = None, True
    else:
      length = start + kept
  return TurnResult(
      length, cut, ids, reply.observation, reply.reward, reply.kind)
