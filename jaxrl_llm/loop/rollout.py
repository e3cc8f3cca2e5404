"""From problems to judged responses: encode, sample, decode, verify.

Training and evaluation sample in the same way. What is on the host is NumPy.
Requests of one prompt are neighbours. Each process decodes and verifies the
responses that its devices sampled; then facts about all of them are gathered.
"""

from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

import jax
import numpy as np

from jaxrl_llm import rewards, sharding, tasks
from jaxrl_llm.base import phases
from jaxrl_llm.base.tokenizer import Tokenizer
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling import plan as plan_lib
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.sharding.processes import Processes
from jaxrl_llm.types import (
  GroupRequests,
  Prompts,
  Requests,
  Rollouts,
  Settings,
)


class SamplerProgram(NamedTuple):
  """Sampler at the sizes of one training step.

  Attributes:
    generate: `generate.sharded_generate` on the mesh, jitted.
    sampler: its static choices; `slots` is no more than the requests.
    max_prompts: most distinct prompts of a call.
    max_requests: most requests of a call.
    requests_per_shard: rows of requests on each data shard.
    prompts_per_shard: rows of distinct prompts on each data shard.
  """
  generate: Callable[..., Any]
  sampler: generate_lib.SamplerConfig
  max_prompts: int
  max_requests: int
  requests_per_shard: int
  prompts_per_shard: int


class SampleCall(NamedTuple):
  """Requests of one call of the sampler, and the problems they are about.

  Attributes:
    problems: P of them.
    prompts: their prompts, [P, L].
    requests: R of them.
    for_teacher: prompts that a teacher reads in place of these; None if it
      reads the same ones.
  """
  problems: Sequence[tasks.Problem]
  prompts: Prompts
  requests: Requests
  for_teacher: Prompts | None = None

  def problem(self) -> list[tasks.Problem]:
    """Returns the problem of each request."""
    return [self.problems[i] for i in self.requests.prompt]


class PlayedTurns(NamedTuple):
  """Turns of the responses of a wave, and the environment's verdicts.

  Attributes:
    turns: of the M rows at home in this process: text, observation and reward
      of each turn.
    starts: of these rows, the column of the first token of each turn.
    verdicts: of these rows; None where the task is to judge the last turn.
    answered: whether the environment answered the last turn of these rows, as
      where a limit ended the trajectory in a call. It is no final answer then.
    count: [R] int32, turns of the model.
    waited: share of the seconds in which no response was sampled, since the
      environment was at work.
  """
  turns: list[list[dict[str, Any]]]
  starts: list[list[int]]
  verdicts: list[rewards.Verdict | None]
  answered: list[bool]
  count: np.ndarray
  waited: float


class Responses(NamedTuple):
  """Responses of one call of the sampler.

  Attributes:
    call: problems, prompts and requests that they respond to.
    rollouts: R of them, in the order of the requests; zeros where they are not
      at home in this process.
    rows: [M] those at home in this process.
    texts: of these M rows, see `decode`.
    shard: [R] data shard that sampled each.
    use: counts of this process's sampler: decode 'steps', and 'busy' and
      'slots', each summed over the steps.
    policy_step: optimiser steps behind the policy that sampled them.
    played: how they came about, if an environment answered; else None.
  """
  call: SampleCall
  rollouts: Rollouts
  rows: np.ndarray
  texts: list[str]
  shard: np.ndarray
  use: dict[str, int]
  policy_step: int = 0
  played: PlayedTurns | None = None


class Judged(NamedTuple):
  """Facts about the responses of one call, the same in every process.

  Attributes:
    reward: [R] float64, of the verdict; NaN if the verification failed.
    kind: R kinds of verdicts.
    answer: R answers of the verdicts.
    length: [R] int32, tokens of the response.
    truncated: [R] bool.
    entropy: [R] float32, mean entropy of its tokens when they were sampled, in
      nats.
    use: how busy the sampler was, in all processes.
    verdicts: of the rows at home in this process.
    rewards: name to [R] float64, the separate rewards of the verdicts; NaN
      where one does not count.
    logged: name to [R] float64, the verdicts' numbers for the metrics; NaN
      where there is none.
    observed: [R] int32, tokens of the response that the environment wrote; None
      without one.
    turns: R lists, (first column, tokens of the model, reward) of each turn;
      None without an environment.
    played: facts that the environment added; None without one.
    verified: [R] float64, the verifier's reward, if a reward model makes
      `reward`; else None.
  """
  reward: np.ndarray
  kind: list[str]
  answer: list[str]
  length: np.ndarray
  truncated: np.ndarray
  entropy: np.ndarray
  use: dict[str, int]
  verdicts: list[rewards.Verdict]
  rewards: dict[str, np.ndarray] = {}
  logged: dict[str, np.ndarray] = {}
  observed: np.ndarray | None = None
  turns: list[list[tuple[int, int, float]]] | None = None
  played: PlayedTurns | None = None
  verified: np.ndarray | None = None

  @property
  def generated(self) -> np.ndarray:
    """[R] int32, tokens of the response that the model wrote."""
    return self.length - (0 if self.observed is None else self.observed)

  @property
  def valid(self) -> np.ndarray:
    """[R] bool, False if the verification failed."""
    return ~np.isnan(self.reward)

  @property
  def right(self) -> np.ndarray:
    """[R] bool, whether the verifier's reward is at least 1."""
    return np.float32(
        self.reward if self.verified is None else self.verified) >= 1.0


def encode(
    problems: Sequence[tasks.Problem], tokenizer: Tokenizer,
    max_prompt: int, field: str = 'prompt') -> Prompts:
  """Tokenises problems into right-padded rows.

  Args:
    problems: P of them.
    tokenizer: of the task.
    max_prompt: L, columns of the result.
    field: of the problems that has the text.

  Returns:
    Prompts of NumPy arrays.

  Raises:
    ValueError: a prompt has no token or more than `max_prompt`.
  """
  tokens = np.zeros((len(problems), max_prompt), np.int32)
  length = np.zeros(len(problems), np.int32)
  for row, problem in enumerate(problems):
    ids = tokenizer.encode(getattr(problem, field))
    if not 1 <= len(ids) <= max_prompt:
      raise ValueError(
          f'The prompt of problem {problem.id} has {len(ids)} tokens, outside '
          f'1 to max_prompt={max_prompt}: raise config.max_prompt or leave the '
          'problem out.')
    tokens[row, :len(ids)] = ids
    length[row] = len(ids)
  ids = np.array([problem.id for problem in problems], np.int32)
  return Prompts(tokens=tokens, length=length, problem_id=ids)


def requests(prompt: np.ndarray, sample: np.ndarray, budget: int) -> Requests:
  """Makes requests with one budget.

  Args:
    prompt: [R] row of the prompt.
    sample: [R] number of the sample within its group.
    budget: response tokens allowed to each.

  Returns:
    Requests of NumPy arrays.
  """
  return Requests(
      prompt=np.asarray(prompt, np.int32), sample=np.asarray(sample, np.int32),
      budget=np.full(len(prompt), budget, np.int32))


def requests_of(
    ask: GroupRequests, *, problems: int, samples: int,
    budget: int) -> Requests:
  """Makes the requests of a wave, those of a group together.

  A group is a visit to its problem: visit v is its (v + 1)-th group in the data
  order. Its sample j has the number v * n + j among the problem's samples, so
  that no two samples of a run share their noise.

  Args:
    ask: P groups; entry p is row p of the prompts.
    problems: D, size of the training set.
    samples: n.
    budget: response tokens allowed to each.

  Returns:
    Requests of NumPy arrays.
  """
  row = np.repeat(np.arange(len(ask.group)), ask.count)
  return requests(
      row, (ask.group // problems * samples)[row] + ask.sample, budget)


def call_of(
    task: tasks.Task, ask: GroupRequests, settings: Settings) -> SampleCall:
  """Makes the call of the sampler for a wave of P groups."""
  problems = [task.train[i] for i in ask.problem]
  return SampleCall(
      problems, encode(problems, task.tokenizer, settings.max_prompt),
      requests_of(
          ask, problems=len(task.train), samples=settings.samples,
          budget=settings.max_response),
      for_teacher(problems, task.tokenizer, settings))


def for_teacher(
    problems: Sequence[tasks.Problem], tokenizer: Tokenizer,
    settings: Settings) -> Prompts | None:
  """Returns the prompts of a teacher that has its own, else None."""
  columns = settings.teacher_prompt
  return encode(
      problems, tokenizer, columns, 'teacher_prompt') if columns else None


def sequences(
    prompt: np.ndarray, length: np.ndarray, response: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
  """Puts responses directly after their prompts.

  Args:
    prompt: [B, L], right-padded.
    length: [B], tokens of the prompts.
    response: [B, T].

  Returns:
    [B, L + T]; and the lengths, at least 1: a token of a response is predicted
    by the column before it, so that filler too has a prompt.
  """
  length, t = np.maximum(length, 1), np.arange(response.shape[1])
  out = np.pad(prompt, ((0, 0), (0, len(t))))
  np.put_along_axis(out, length[:, None] + t, response, axis=1)
  return out, length


def decode(
    rollouts: Rollouts, tokenizer: Tokenizer,
    rows: Sequence[int] | None = None) -> list[str]:
  """Decodes responses, without the stop tokens that ended them.

  Args:
    rollouts: R of them.
    tokenizer: of the task.
    rows: which ones; None for all.
  """
  ends = rollouts.length - ~rollouts.truncated
  rows = range(len(ends)) if rows is None else rows
  if getattr(tokenizer, 'stop_texts', ()):
    # The token that completes a text may begin with more of the response.
    ends = rollouts.length
  return [
      tokenizer.decode(rollouts.tokens[row, :ends[row]].tolist())
      for row in rows]


_NO_LIMIT = np.iinfo(np.int32).max


def host_sampler(
    made: SamplerProgram, mesh: jax.sharding.Mesh,
) -> Callable[..., tuple[Rollouts, dict[str, int]]]:
  """Makes the sampler of a run, from host to host.

  Args:
    made: the device program, at the sizes of one training step.
    mesh: (data, fsdp, tensor), of the program.

  Returns:
    (params, prompts, requests, key, sampling, policy_step, shard=None,
    max_steps=None) -> (rollouts, counts). `shard` is that of `plan.plan`. At
    most `made.max_prompts` prompts and `made.max_requests` requests, all NumPy
    but `params`, `key` and `sampling`. With a sampler that continues, `key` is
    the run's, and `max_steps` may limit the decode steps of each shard.
    Rollouts are NumPy arrays in the order of the requests, zeros where they are
    not at home in this process. Counts are decode 'steps', and 'busy' and
    'slots', each summed over the steps and the shards of this process. One
    program serves every mix of requests.
  """
  shards, slots = sharding.data_shards(mesh), made.sampler.slots
  team = processes_lib.make_processes(mesh)

  def sample(
      params, prompts, requests, key, sampling, policy_step, shard=None,
      max_steps=None):
    plan = plan_lib.plan(
        prompts, requests, shards=shards,
        requests_per_shard=made.requests_per_shard,
        prompts_per_shard=made.prompts_per_shard, shard=shard)
    parts = [plan.prompts, plan.requests, plan.count]
    if made.sampler.continues:
      parts.append(np.full(
          shards, _NO_LIMIT if max_steps is None else max_steps, np.int32))
    rollouts, stats = made.generate(
        params, Queue(*(team.shard_rows(
            jax.tree.map(lambda x: x[team.positions(len(x))], tree),
            len(jax.tree.leaves(tree)[0])) for tree in parts)),
        key, sampling, processes_lib.replicate(np.int32(policy_step), mesh))
    rollouts, stats = team.fetch_rows((rollouts, stats))
    counts = dict(
        steps=int(stats.steps.max()), busy=int(stats.busy.sum()),
        slots=int(stats.steps.sum()) * slots)
    return plan_lib.undo(
        rollouts, plan, team.positions(shards * made.requests_per_shard)
    ), counts

  return sample


def respond(
    sample: Callable[..., tuple[Rollouts, dict[str, int]]], params: Any,
    call: SampleCall, key: jax.Array, sampling: SamplingParams, *,
    tokenizer: Tokenizer, processes: Processes,
    policy_step: int = 0) -> Responses:
  """Samples responses and decodes those at home in this process.

  Args:
    sample: from `host_sampler`.
    params: sampling parameters on device.
    call: prompts and requests.
    key: PRNG key; the same key gives the same responses.
    sampling: how to draw.
    tokenizer: of the task.
    processes: who holds which rows.
    policy_step: optimiser steps behind `params`, recorded with the rollouts.
  """
  with phases.phase('sampling', len(call.requests.prompt), 'responses'):
    rollouts, use = sample(
        params, call.prompts, call.requests, key, sampling,
        policy_step=policy_step)
  shard = plan_lib.shard_of(
      len(call.requests.prompt), sharding.data_shards(processes.mesh))
  rows = np.flatnonzero(processes.here(shard))
  return Responses(
      call, rollouts, rows, decode(rollouts, tokenizer, rows), shard, use,
      policy_step)


def start_judging(
    task: tasks.Task, responses: Responses, processes: Processes,
    step: int = 0, steps: int = 0) -> Callable[[], Judged]:
  """Starts to judge the responses at home in this process.

  One process of each home judges them.

  Args:
    task: problems and their verifier.
    responses: R responses of all processes.
    processes: who holds which rows.
    step: steps of the run that were done before.
    steps: steps that the run takes in all.

  Returns:
    A function that waits for the verdicts of all processes. All of them must
    call it. It raises the errors of `rewards.submit` in every process.
  """
  rows, rollouts = responses.rows, responses.rollouts
  length, truncated = rollouts.length[rows], rollouts.truncated[rows]
  real = np.arange(rollouts.tokens.shape[1]) < length[:, None]
  if rollouts.generated is not None:
    real &= rollouts.generated[rows]
  count = real.sum(1)
  entropy = (np.where(real, rollouts.entropy[rows], 0).sum(1) / np.maximum(
      count, 1)).astype(np.float32)
  turns: list[Any] = [None] * len(rows)
  if responses.played:
    turns = [
        [(start, int(wrote[start:end].sum()), turn['reward'])
         for start, end, turn in zip(starts, [*starts[1:], None], said)]
        for wrote, starts, said in zip(
            real, responses.played.starts, responses.played.turns)]
  started = Attempt(lambda: [])
  if processes.leads:
    started = attempted(lambda: _judge(task, responses, step, steps))

  def judged():
    verdicts, error = started if started.error else attempted(started.value)
    mine = [
        (v.reward if v.valid else None, v.kind, v.answer, v.rewards, v.logged,
         *others)
        for v, *others in zip(
            verdicts or (), length.tolist(), truncated.tolist(),
            entropy.tolist(), (length - count).tolist(), turns)] or [
                None] * len(rows)
    facts, extra = processes.gather_rows(
        responses.shard, mine, (error, responses.use))
    raise_first(error for error, _ in extra)
    reward, kind, answer, separate, logged, *others = (
        zip(*facts) if facts else [()] * 10)
    busy, slots, steps = (
        [use[name] for _, use in extra] for name in ('busy', 'slots', 'steps'))
    *others, of_turns = others
    *others, observed = (np.array(column, of) for column, of in zip(
        others, (np.int32, bool, np.float32, np.int32)))
    return Judged(
        np.array(reward, float), [*kind], [*answer], *others,
        dict(steps=max(steps), busy=sum(busy), slots=sum(slots)),
        verdicts or [], _columns(separate), _columns(logged), observed,
        [*of_turns] if responses.played else None, responses.played)

  return judged


def _judge(
    task: tasks.Task, responses: Responses, step: int, steps: int,
) -> Callable[[], list[rewards.Verdict]]:
  """Starts to judge the M rows at home, but those judged in their play.

  Args:
    task, responses, step, steps: those of `start_judging`.

  Returns:
    A function that waits for the verdicts.
  """
  played, problems = responses.played, responses.call.problem()
  known, texts = [None] * len(responses.rows), responses.texts
  if played:
    # A turn that was answered, as at a limit, is no answer.
    known, texts = played.verdicts, [
        '' if answered else turns[-1]['text']
        for turns, answered in zip(played.turns, played.answered)]
  places = [i for i, verdict in enumerate(known) if verdict is None]
  rows = responses.rows[places]
  wait = rewards.submit(
      task, [problems[row] for row in rows], [texts[i] for i in places],
      responses.rollouts.truncated[rows], _facts(
          task, responses, places)._replace(step=step, steps=steps))

  def verdicts():
    found = iter(wait())
    return [next(found) if verdict is None else verdict for verdict in known]

  return verdicts


def _facts(
    task: tasks.Task, responses: Responses,
    places: Sequence[int]) -> rewards.Facts:
  """Returns the facts about these of the M rows at home."""
  rollouts, rows = responses.rollouts, responses.rows[places]
  length = rollouts.length[rows]
  tokens = [rollouts.tokens[row, :n].tolist() for row, n in zip(rows, length)]
  if not responses.played:
    return rewards.Facts(tokens)
  # The model wrote the end; before its last turn there is an observation.
  last = [int(np.argmin(rollouts.generated[row, :n][::-1])) or int(n)
          for row, n in zip(rows, length)]
  problems, turns = responses.call.problem(), responses.played.turns
  messages = [task.turns.messages(problems[row], turns[i])
              for row, i in zip(rows, places)]
  return rewards.Facts(tokens, messages=messages, last=last)


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
  """Returns name to [R] numbers, NaN where a row has none of the name."""
  names = dict.fromkeys(name for row in rows for name in row)
  return {name: np.array([row.get(name) for row in rows], float)
          for name in names}


def further(verdict: rewards.Verdict) -> dict[str, Any]:
  """Returns a record's optional fields: the `rewards` of several functions, and
  the values that they log, as `extra`.
  """
  return {name: value for name, value in (
      ('rewards', verdict.rewards), ('extra', verdict.extra)) if value}


class Attempt(NamedTuple):
  """Result of a function that may fail in one process alone.

  Attributes:
    value: the result; None after an error.
    error: the error, for all processes to raise; else None.
  """
  value: Any
  error: Exception | None = None


def attempted(function: Callable[[], Any]) -> Attempt:
  """Calls a function of one process, and keeps an error that ends the run.

  A process that raised alone would leave the others waiting for it. The error
  is made anew: another process could not read every error of a user's code.
  """
  try:
    return Attempt(function())
  except ChildProcessError as error:
    return Attempt(None, ChildProcessError(str(error)))
  except ValueError as error:
    return Attempt(None, rewards.VerifierError(str(error)))


def raise_first(errors: Iterable[Exception | None]) -> None:
  """Raises the first error of the processes, if there is one."""
  for error in errors:
    if error:
      raise error


_PATIENCE = 3  # steps in a row without a reward, the last of which ends a run


class Unrewarded:
  """Counter of the steps in a row in which no response had a reward.

  One problem at fault may be all that a small step has. A run that goes on
  counts anew. Where steps end before their longest response, they have few
  others: `least` responses count as a step.
  """

  def __init__(self, least: int = 0):
    self._least, self._kinds = least, []
    self._steps, self._told = 0, False
    self._first = False  # whether all of the run's responses were errors

  def check(self, judged: Judged, responses: Responses, step: int) -> str:
    """Counts a step.

    Args:
      judged: facts about its responses.
      responses: of which the process judged some.
      step: steps of the run that were done before.

    Returns:
      A warning, in the first step without a reward; else ''.

    Raises:
      VerifierError: it is one step too many, or the verifier failed on all
        responses of the run's first step; in every process. The message quotes
        a response.
    """
    self._first |= not step
    if not judged.kind:
      return ''
    if judged.valid.any():
      self._steps, self._kinds, self._first = 0, [], False
      return ''
    kinds = self._kinds = [*self._kinds, *judged.kind]
    if len(kinds) < self._least:
      return ''
    first, self._first = self._first, False
    self._steps, self._kinds = self._steps + 1, []
    if self._steps < _PATIENCE and not (first and {*kinds} == {'error'}):
      told, self._told = self._told, True
      return '' if told else (
          f'None of the last {len(kinds)} responses up to step {step + 1} has '
          f'a reward ({rewards.counts(kinds)}): see samples.jsonl. If '
          f'{_PATIENCE} times as many in a row have none, the run ends.')
    try:
      rewards.check_step(judged.verdicts, responses.texts)
    except rewards.VerifierError as error:
      raise rewards.VerifierError(
          f'{self._steps} times in a row no response had a reward. {error}'
          if self._steps > 1 else str(error)) from None
    raise rewards.VerifierError(
        f'None of the {len(judged.kind)} responses of the step has a reward '
        f'({rewards.counts(judged.kind)}); other processes say why: correct '
        'the verifier.')
