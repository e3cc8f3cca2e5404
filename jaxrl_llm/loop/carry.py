"""Waves that end before their longest response: `sampling.carry_over`.

A wave ends after `sampling.wave_steps` decode steps of each shard. A response
that is unfinished then is a request of the next wave, which goes on from its
own tokens on the shard that began it, before new requests. Keys and values are
not carried, since the weights are new: they are computed again from the tokens.

Groups leave in the order in which they were begun, once all of their responses
are finished: batches would else be biased to short responses. The stages see
them then. Counts decide all of this, never time: a resumed run does the same.

Metrics:
  carry/begun [groups]: begun that have not left, after the wave
  carry/left [groups]: that left in the wave
  carry/prefilled [tokens]: that responses which went on had before the wave;
    their keys and values were computed again
  carry/age [waves]: between the first token of a response and the wave in which
    its group leaves, mean over the responses that leave
  carry/age_p99 [waves]: their 99th percentile
  carry/age_max [waves]: the largest
  carry/older [share]: of the tokens that leave, those of an older policy
"""

import heapq
from typing import Any, Callable, NamedTuple, Sequence

import jax
import numpy as np

from jaxrl_llm import sharding
from jaxrl_llm.learner.update import TrainState
from jaxrl_llm.loop import rollout, scores, turns
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.loop.parts import Fixed, Parts
from jaxrl_llm.loop.rollout import Judged, Responses, SampleCall
from jaxrl_llm.loop.turns import Progress, WaveSampling
from jaxrl_llm.monitoring import timing
from jaxrl_llm.sharding.processes import Processes
from jaxrl_llm.types import (
  GroupRequests,
  Requests,
  Rollouts,
  RolloutTokens,
  Table,
)

# Columns of a response that are made piece by piece, before a policy is gone.
_BY_PIECE = 'token_steps', *(
    name for name, column in RolloutTokens.declared.items()
    if column.maker == 'score')


class Begun(NamedTuple):
  """Groups that were begun and have not left, the first begun first.

  Attributes:
    ask: G requests of the curriculum; free places ask for no sample.
    table: C rows, the samples of these requests in their order; then free ones.
      Unfinished rows lack the verifier's facts.
    rollouts: the same rows as far as they exist; zeros where they are not at
      home in this process.
    pieces: the same rows: scores of their tokens, and the steps of the policies
      that wrote them.
    finished: [C] bool.
    wave: [C] int32, the wave of the first token.
    start, count: [C] int32, of trajectories, see `turns.Progress`.
    groups: requests in `ask`.
    samples: rows that are not free.
    said: of these rows, see `turns.Progress`, if an environment answers. A
      checkpoint keeps them beside its arrays.
  """
  ask: GroupRequests
  table: Table
  rollouts: Rollouts
  pieces: RolloutTokens
  finished: np.ndarray
  wave: np.ndarray
  start: np.ndarray
  count: np.ndarray
  groups: int
  samples: int
  said: Sequence[str] = ()

  @property
  def place(self) -> np.ndarray:
    """[samples] number in `ask` of each row's request."""
    return np.repeat(np.arange(self.groups), self.ask.count[:self.groups])

  @property
  def rows(self) -> tuple[Any, ...]:
    """All arrays of rows."""
    return self[1:8]


class Carried(NamedTuple):
  """Rows after a wave of a run that carries responses over.

  Attributes:
    begun: groups that stay, unpadded, without the scores of this wave.
    ask: requests that leave.
    rows: their rows.
    first_wave: the earliest one in which one of them was begun.
    sampled: tokens of the wave, as `models.flops.sample` takes them.
    metrics: the module's.
  """
  begun: Begun
  ask: GroupRequests
  rows: rows_lib.Buffer
  first_wave: int
  sampled: tuple[np.ndarray, np.ndarray, np.ndarray]
  metrics: dict[str, float]


def nothing() -> GroupRequests:
  """Returns requests for no group."""
  return GroupRequests(*(np.zeros(0, kind) for kind in (
      np.int64, np.int32, np.int32, np.int32, bool)))


def empty(parts: Parts) -> Begun | None:
  """Returns the state before the first wave; None without `carry_over`."""
  if not parts.stages.settings.carry:
    return None
  return _padded(Begun(nothing(), *_free(parts, 0), 0, 0, []), parts)


def row_bytes(parts: Parts) -> int:
  """Returns the bytes of a row of `Begun`."""
  return sum(x.nbytes for x in jax.tree.leaves(_free(parts, 1)))


def moved(begun: Begun, shards: int) -> Begun:
  """Gives the rows of a checkpoint to the data shards of another mesh."""
  shard = begun.table.shard % shards
  there = np.flatnonzero(~begun.finished[:begun.samples])
  shard[there] = spread(np.zeros(shards, int), len(there))
  return begun._replace(table=begun.table.replace(shard=shard))


def _free(parts: Parts, rows: int) -> tuple[Any, ...]:
  """Makes `Begun.rows` that are free, with the columns that there are."""
  sampler, needs = (
      parts.programs.rollout_sampler.sampler.sampler, parts.stages.needs)
  table, tokens = rows_lib.empty(rows, parts.stages)
  returned = dict(
      tempered_logprobs=sampler.tempered, match=sampler.stop_texts is not None,
      top_ids=needs.top, top_logprobs=needs.top,
      generated='generated' in needs.columns,
      experts='experts' in needs.columns)
  rollouts = Rollouts.free(rows, needs.axes, {
      k: needs.columns.get(k) for k, there in returned.items() if there})
  return table, rollouts, RolloutTokens(**{
      name: tokens.columns[name] for name in _BY_PIECE
      if name in tokens.columns}), np.zeros(rows, bool), *np.zeros(
          (3, rows), np.int32)


def _padded(begun: Begun, parts: Parts) -> Begun:
  """Adds free places and rows: a checkpoint has the same shapes each time."""
  sizes = parts.stages.curriculum
  places, rows = (
      sizes.max_prompts - begun.groups, sizes.max_requests - begun.samples)
  return Begun(
      jax.tree.map(lambda x: np.pad(x, (0, places)), begun.ask),
      *jax.tree.map(
          lambda *x: np.concatenate(x), begun.rows, _free(parts, rows)),
      begun.groups, begun.samples, begun.said)


def propose(
    parts: Parts, curriculum: Any, begun: Begun,
) -> tuple[Any, GroupRequests, Begun]:
  """Begins the groups of a wave, if there is room for as many as it may ask.

  Args:
    parts: stages and sizes.
    curriculum: its state.
    begun: before the wave.

  Returns:
    The curriculum's state; the new requests; and all begun groups, unpadded.
  """
  sizes, wave, ask = (
      parts.stages.curriculum, parts.stages.settings.carry, nothing())
  if (begun.groups + wave.groups <= sizes.max_prompts
      and begun.samples + wave.requests <= sizes.max_requests):
    curriculum, ask = sizes.propose(curriculum)
  return curriculum, ask, begin(begun, ask, parts)


def spread(load: np.ndarray, rows: int) -> np.ndarray:
  """Assigns new rows to shards, so that the busiest has as few as possible.

  Args:
    load: [shards] unfinished rows of each.
    rows: R new ones, of which each shard gets neighbours.

  Returns:
    [R] int32 shard of each.
  """
  queue = [(int(n), shard) for shard, n in enumerate(load)]
  heapq.heapify(queue)
  counts = np.zeros(len(load), int)
  for _ in range(rows):
    n, shard = queue[0]
    counts[shard] += 1
    heapq.heapreplace(queue, (n + 1, shard))
  return np.repeat(np.arange(len(load), dtype=np.int32), counts)


def begin(begun: Begun, ask: GroupRequests, parts: Parts) -> Begun:
  """Adds the requests of a wave behind those that were begun, unpadded."""
  of = np.repeat(np.arange(len(ask.group)), ask.count)
  held = jax.tree.map(lambda x: x[:begun.samples], begun.rows)
  table, finished = held[0], held[3]
  shards = sharding.data_shards(parts.processes.mesh)
  load = np.bincount(table.shard[~finished], minlength=shards)
  free, *rest = _free(parts, len(of))
  more = free.replace(
      group=ask.group[of], sample=ask.sample, problem=ask.problem[of],
      probe=ask.probe[of], shard=spread(load, len(of))), *rest
  joined = jax.tree.map(
      lambda a, b: np.concatenate([a, b.astype(a.dtype)]), held, more)
  return Begun(
      jax.tree.map(
          lambda a, b: np.concatenate([a[:begun.groups], b.astype(a.dtype)]),
          begun.ask, ask),
      *joined, begun.groups + len(ask.group), begun.samples + len(of),
      [*begun.said, *[''] * len(of) * has_turns(parts)])


def has_turns(parts: Parts) -> bool:
  """Returns whether an environment answers the responses."""
  return bool(getattr(parts.task, 'turns', None))


def call_of(parts: Parts, begun: Begun, rows: np.ndarray) -> SampleCall:
  """Makes the call that samples some rows on, with the prompts they have.

  A group's noise is that of its place among the waves, whenever it begins.

  Args:
    parts: task and sizes.
    begun: unpadded.
    rows: [R] which ones.
  """
  task, settings = parts.task, parts.stages.settings
  places, prompt = np.unique(begun.place[rows], return_inverse=True)
  problems = [task.train[i] for i in begun.ask.problem[places]]
  table, so_far = begun.table.at(rows), begun.rollouts.at(rows)
  requests = rollout.requests(
      prompt, table.group // len(task.train) * settings.samples + table.sample,
      settings.max_response)
  return SampleCall(
      problems, rollout.encode(problems, task.tokenizer, settings.max_prompt),
      requests.replace(
          done=so_far.length, tokens=so_far.tokens, match=so_far.match,
          birth=(table.group // settings.carry.prompts).astype(np.int32)),
      rollout.for_teacher(problems, task.tokenizer, settings))


def respond(
    parts: Parts, begun: Begun, sampling: WaveSampling,
) -> tuple[Responses, Callable[[], Callable[[], Judged]], Begun]:
  """Samples unfinished rows for a wave; all processes must call it.

  Args:
    parts: task, processes and keys.
    begun: unpadded.
    sampling: how to sample.

  Returns:
    The responses that the wave finished, and a function that starts to judge
    them, as from `turns.respond`; and the rows after the wave.
  """
  processes, settings = parts.processes, parts.stages.settings
  rows, turned = np.flatnonzero(~begun.finished), {}
  call, shard = call_of(parts, begun, rows), begun.table.shard[rows]
  if has_turns(parts):
    now, of_ended, use = turns.play_on(parts, call, sampling, shard, Progress(
        begun.rollouts.at(rows), begun.start[rows], begun.count[rows],
        begun.finished[rows], [begun.said[row] for row in rows]))
    so_far, ended = now.rollouts, now.ended
    turned = dict(start=now.start, count=now.count, said=now.said)
  else:
    new, use = sampling.sample(
        sampling.params, call.prompts, call.requests, parts.key, sampling.draw,
        policy_step=sampling.policy_step, shard=shard,
        max_steps=settings.carry.steps)
    so_far, ended = continued(call.requests, new, begun, rows, processes)
  begun = note(begun, rows, so_far, ended, call, sampling, **turned)
  done = rows[ended]
  here = np.flatnonzero(processes.here(begun.table.shard[done]))
  finished, played = begun.rollouts.at(done), None
  if turned:
    here, texts, played = of_ended(np.flatnonzero(ended))
  else:
    texts = rollout.decode(finished, parts.task.tokenizer, here)
  responses = Responses(
      call_of(parts, begun, done), finished, here, texts,
      begun.table.shard[done], use, sampling.policy_step, played)
  return responses, lambda: rollout.start_judging(
      parts.task, responses, processes, sampling.step, settings.steps), begun


def continued(
    requests: Requests, new: Rollouts, begun: Begun, rows: np.ndarray,
    processes: Processes) -> tuple[Rollouts, np.ndarray]:
  """Adds the tokens of a call to responses; all processes must call it.

  Args:
    requests: R of them.
    new: what the sampler returned, zeros where not at home.
    begun: before the call; `rows` are those of the requests.
    rows: [R].
    processes: who holds which rows.

  Returns:
    The responses so far, and which of them are finished [R].
  """
  shard = begun.table.shard[rows]
  names = [name for name in ('length', 'truncated', 'match')
           if name in new.columns]
  facts, _ = processes.gather_rows(shard, [
      [new.columns[name][i].item() for name in names]
      for i in np.flatnonzero(processes.here(shard))])
  known = dict(zip(names, np.array(facts, int).reshape(-1, len(names)).T))
  so_far = begun.rollouts.at(rows)
  served, columns = known['length'] > 0, {}
  for name, x in new.columns.items():
    if name in known:
      columns[name] = np.where(served, known[name], so_far.columns[name])
    elif {*'ST'} & {*new.declared[name].axes}:
      columns[name] = so_far.columns[name] + x  # 0 where tokens existed
  so_far = so_far.replace(**columns)
  # A response that the end of the wave cut is `truncated` below its budget.
  return so_far, served & ~(
      (so_far.truncated > 0) & (so_far.length < requests.budget))


def note(
    begun: Begun, rows: np.ndarray, so_far: Rollouts, finished: np.ndarray,
    call: SampleCall, sampling: WaveSampling, **turned: Any) -> Begun:
  """Notes how far a wave has brought rows.

  Args:
    begun: unpadded.
    rows: [R] that were sampled.
    so_far: R of them.
    finished: [R] bool, which of them are finished.
    call: their prompts and requests.
    sampling: of the wave.
    **turned: start, count and said of the R rows, if an environment answers.
  """
  def put(old, new):
    old = old.copy()
    old[rows] = new
    return old

  before, t = call.requests.done, np.arange(so_far.tokens.shape[1])
  rollouts = begun.rollouts.replace(**{
      name: put(begun.rollouts.columns[name], x)
      for name, x in so_far.columns.items() if name in begun.rollouts.columns})
  first = (before == 0) & (so_far.length > 0)
  table, steps = begun.table, begun.pieces.token_steps
  new = (t >= before[:, None]) & (t < so_far.length[:, None])
  said = [*begun.said]
  for row, text in zip(rows.tolist(), turned.pop('said', ())):
    said[row] = text
  return begun._replace(
      rollouts=rollouts, finished=put(begun.finished, finished), said=said,
      wave=put(begun.wave, np.where(first, sampling.step, begun.wave[rows])),
      pieces=begun.pieces.replace(token_steps=put(
          steps, np.where(new, sampling.policy_step, steps[rows]))),
      table=table.replace(
          carried=put(begun.rollouts.length, before),
          length=rollouts.length.astype(np.int32),
          policy_step=put(table.policy_step, np.where(
              first, sampling.policy_step, table.policy_step[rows])),
          prompt_length=put(table.prompt_length, call.prompts.length[
              call.requests.prompt])),
      **{name: put(getattr(begun, name), x) for name, x in turned.items()})


def wave(
    parts: Parts, state: Any, begun: Begun, responses: Responses,
    judged: Judged) -> rows_lib.Wave:
  """Notes the verdicts of a wave, and lets groups leave.

  Args:
    parts: stages and sizes.
    state: RunState before the step.
    begun: from `respond`.
    responses: finished in the wave.
    judged: facts about them.

  Returns:
    The wave of the responses that it has finished.
  """
  place, length = begun.place, begun.rollouts.length
  done = np.flatnonzero(begun.finished & (begun.table.carried < length))
  some, count = np.unique(place[done], return_counts=True)
  ask = jax.tree.map(lambda x: x[some], begun.ask)._replace(
      count=count.astype(np.int32))
  made = rows_lib.of_wave(
      ask, responses, judged, parts.stages, state.step).table
  own = begun.table.at(done)
  made = made.replace(
      sample=own.sample, policy_step=own.policy_step, carried=own.carried)
  table = jax.tree.map(np.copy, begun.table)
  for name, x in made.columns.items():
    table.columns[name][done] = x

  waiting = place[~begun.finished]
  groups = int(waiting.min(initial=begun.groups))
  rows = np.flatnonzero(place < groups)
  out = table.at(rows)
  left = jax.tree.map(lambda x: x[:groups], begun.ask), rows_lib.Buffer(
      out, tokens(parts, begun, rows))
  old = begun.table.carried
  went = np.flatnonzero(length > old)
  before = begun.table.prompt_length[went] + old[went]
  carried = Carried(
      Begun(
          jax.tree.map(lambda x: x[groups:], begun.ask),
          *jax.tree.map(lambda x: x[len(rows):], (table, *begun.rows[1:])),
          begun.groups - groups, begun.samples - len(rows),
          begun.said[len(rows):]),
      *left, int(begun.wave[rows].min(initial=state.step)),
      (before, before, (length - old)[went]),
      _metrics(begun, rows, groups, responses, state.step))
  return rows_lib.Wave(
      ask, responses, judged, rows_lib.Buffer(made, RolloutTokens()),
      rows_lib.signal(
          parts, state.buffer.table, out, left[0], state.step), carried)


def _metrics(
    begun: Begun, rows: np.ndarray, groups: int, responses: Responses,
    step: int) -> dict[str, float]:
  """Computes the module's metrics; `rows` and `groups` leave."""
  age, steps = step - begun.wave[rows], begun.pieces.token_steps[rows]
  real = np.arange(steps.shape[1]) < begun.rollouts.length[rows, None]
  older = real & (steps < responses.policy_step)
  none, before = not len(rows), begun.table.carried
  metrics = dict(
      begun=begun.groups - groups, left=groups,
      prefilled=before[begun.rollouts.length > before].sum(),
      age=np.nan if none else age.mean(),
      age_p99=np.nan if none else np.percentile(age, 99),
      age_max=np.nan if none else age.max(),
      older=np.nan if none else older.sum() / real.sum())
  return {f'carry/{name}': float(x) for name, x in metrics.items()}


def score(
    parts: Parts, fixed: Fixed, begun: Begun,
    learners: dict[str, TrainState], timer: timing.Timer) -> Begun:
  """Scores the tokens of a wave in rows that stay, and pads the rows.

  The policy that wrote them is gone when their groups leave.
  """
  new = begun.table.carried < begun.rollouts.length
  scored = scores.with_scores(
      parts, fixed, begun.table, tokens(parts, begun, np.arange(len(new))),
      scores.masked_indices(new, parts.programs.scored_rows), learners, timer)
  return _padded(begun._replace(pieces=begun.pieces.replace(**{
      name: scored.columns[name] for name in begun.pieces.columns})), parts)


def tokens(parts: Parts, begun: Begun, rows: np.ndarray) -> RolloutTokens:
  """Makes the tokens of rows, with the scores of their pieces so far."""
  some = begun.rollouts.at(rows)
  responses = Responses(
      call_of(parts, begun, rows), some, rows, [], begun.table.shard[rows], {})
  free = rows_lib.empty(len(rows), parts.stages).tokens
  return rows_lib.tokens_of(
      responses, some.length, free, parts.stages.settings.tempered
  ).replace(**begun.pieces.at(rows).columns)
