"""Containers that move through the loop, in the order they are made.

A group is the samples of one problem. It is known by its position in the data
order: groups count up from 0 over the whole run, and (group, sample) names a
row for ever.

Axis letters, used everywhere: P prompts, L prompt tokens, R requests, T
response tokens, K top-k entries, B rows of a learner batch, S = L + T tokens
of a row, N samples of a group, D width, V vocabulary, H heads; and of columns,
F reward functions, U turns, E numbers of a token's experts, I = 3 of
`identity`, Z tokens of a row as the teacher reads it.

Every probability names its distribution. `tempered` is softmax(logits /
temperature), as the sampler computes it. `behaviour` is the distribution that a
token was drawn from: `tempered` after truncation (top-k, top-p, min-p). Without
truncation both are one array. In a learner's batch, `loss.behaviour` chooses
which of the two `behaviour` is. `old` is the policy at the step of the rollout,
as the trainer computes it: with the temperature, without truncation. `anchor`
is the frozen model of a KL penalty.
"""

from typing import Any, Callable, NamedTuple, Optional

from flax import struct
import jax
import numpy as np

from jaxrl_llm.base.columns import column, Rows

Array = jax.Array


@struct.dataclass
class Prompts:
  """Distinct prompts of one step.

  Attributes:
    tokens: [P, L] int32, right-padded.
    length: [P] int32, tokens of each row without padding, at least 1. 0 marks
      a filler row, which no request may name.
    problem_id: [P] int32, stable id of the problem within its task.
  """
  tokens: Array
  length: Array
  problem_id: Array


@struct.dataclass
class Requests:
  """Requests to the sampler; only the first `count` rows are served.

  Attributes:
    prompt: [R] int32, row of `Prompts`.
    sample: [R] int32, number of the sample within its group. With the problem
      id and the step's key it fixes the sample's noise.
    budget: [R] int32, response tokens allowed, 1 to T.
    done: [R] int32, response tokens that exist already, below `budget`: the
      model's and those of observations. None, as the fields below, if no
      request of the run has any.
    tokens: [R, T] int32 or None, these tokens, 0 after `done`.
    birth: [R] int32 or None, step whose key fixes the noise.
    match: [R] int32 or None, state of the automaton of the stop texts after
      these tokens, 0 at the beginning of a turn; None for 0.
  """
  prompt: Array
  sample: Array
  budget: Array
  done: Optional[Array] = None
  tokens: Optional[Array] = None
  birth: Optional[Array] = None
  match: Optional[Array] = None


class Rollouts(Rows):
  """Responses, in the order of their requests.

  Attributes:
    tokens: [R, T] int32, the response, ending with its stop token if it has
      one. 0 after `length`.
    length: [R] int32, tokens of the response, stop token included; 0 for a
      request that was not served.
    logprobs: [R, T] float32, behaviour log-prob of each token; 0 past `length`.
    entropy: [R, T] float32, nats, of the tempered policy before truncation
      (top-k, top-p, min-p), at the position that drew the token.
    truncated: [R] bool, ended by the budget, not by a stop token.
    problem_id: [R] int32.
    sample: [R] int32.
    policy_step: [R] int32, optimiser step of the policy that wrote it.
    tempered_logprobs: [R, T] float32 or None, tempered log-prob of each token;
      0 past `length`. None where nothing truncates: `logprobs` are these too.
    top_ids: [R, K, T] int32 or None, likeliest tokens of the tempered
      distribution, descending.
    top_logprobs: [R, K, T] float32 or None, their tempered log-probs.
    experts: [R, S, E] unsigned or None, the experts of each token of the prompt
      and then the response, from `experts.Record`. The response's last token
      has none, since it went through no layer: 0, as behind it.
    match: [R] int32 or None, state of the automaton of the stop texts after
      the response, if requests continue.
    generated: [R, T] bool or None, tokens that the model wrote, of responses
      with turns; the others are observations. None: all up to `length`.

  The tokens of a request that exist already count in `length`; all arrays
  [R, T] are 0 in their columns.
  """
  tokens = column(np.int32, 'T')
  length = column(np.int32)
  logprobs = column(np.float32, 'T')
  entropy = column(np.float32, 'T')
  truncated = column(bool)
  problem_id = column(np.int32)
  sample = column(np.int32)
  policy_step = column(np.int32)
  tempered_logprobs = column(np.float32, 'T', maker='sampler')
  top_ids = column(np.int32, 'KT', maker='sampler')
  top_logprobs = column(np.float32, 'KT', maker='sampler')
  experts = column(None, 'SE', maker='sampler')
  match = column(np.int32, maker='sampler')
  generated = column(bool, 'T', maker='environment')


class RolloutTokens(Rows, also=(Rollouts,), wide=True):
  """Tokens and log-probs of rollouts, all that an update needs, in NumPy.

  Attributes:
    prompt: [C, L] int32, right-padded.
    prompt_length: [C] int32.
    response: [C, T] int32, 0 after `length`.
    length: [C] int32, tokens of the response; 0 for a free row.
    behaviour_logprobs: [C, T] float32, of the sampler, before truncation or
      after it, as `loss.behaviour` says.
    old_logprobs: [C, T] float32 or None, under the policy at the step of the
      rollout, of each token where responses are carried over.
    token_steps: [C, T] int32 or None, optimiser steps of the policy that wrote
      each token; 0 behind the last.
    anchor_logprobs: [C, T] float32 or None.
    z: [C, T] float32 or None, normaliser of the kept probabilities.
    actor_logprobs: [C, T] float32 or None, under the actor that wrote them, if
      it is another model.
    teacher_tokens: [C, Z] int32 or None, the teacher's own prompt, then the
      response.

  Also those of `Rollouts` that the run needs.
  """
  prompt = column(np.int32, 'L')
  prompt_length = column(np.int32, fill=1)
  response = column(np.int32, 'T')
  length = column(np.int32)
  behaviour_logprobs = column(np.float32, 'T')
  token_steps = column(np.int32, 'T', maker='run')
  old_logprobs = column(np.float32, 'T', maker='score', player='policy')
  anchor_logprobs = column(
      np.float32, 'T', maker='score', player='policy', frozen=True)
  z = column(np.float32, 'T', maker='score', player='actor')
  actor_logprobs = column(np.float32, 'T', maker='score', player='actor')
  teacher_tokens = column(np.int32, 'Z', maker='run')


class Table(Rows):
  """Facts about rollouts, one row per sample, in NumPy.

  Rows are valid until the end of a wave, when those that no stage holds are
  removed. What lasts longer keeps (group, sample), never a row's number.

  Attributes:
    group: [C] int64, position of the group in the data order; -1 for a free
      row.
    sample: [C] int32, number of the sample within its group, 0 to n - 1.
    problem: [C] int32, index of the problem in the training set.
    policy_step: [C] int32, optimiser steps behind the policy that wrote it, or
      its first token.
    reward: [C] float32, from the verifier or a reward model, without penalties.
    valid: [C] bool, False if the verification failed.
    prompt_length: [C] int32, tokens of the prompt.
    length: [C] int32, tokens of the response.
    generated: [C] int32, tokens of the response that the model wrote; the
      others are observations.
    truncated: [C] bool.
    trained: [C] bool, whether its tokens count in the loss.
    advantage: [C] float32; NaN before its round.
    group_mean: [C] float32, mean of the group's valid rewards; NaN before its
      round.
    group_std: [C] float32, their standard deviation (ddof 0).
    entropy: [C] float32, mean entropy of its tokens in nats: when it was
      sampled, or in the latest update that used it.
    clip_share: [C] float32, share of its tokens that the latest update clipped;
      0 before.
    usage: [C] int32, rounds that have trained on it.
    round: [C] int32, the round that its group was made for, counted from 0 over
      the run; -1 before.
    probe: [C] bool, whether it belongs to an unbiased sample of its problem's
      responses. Metrics use these rows alone.
    shard: [C] int32, data shard that sampled it; its processes have the tokens.
    separate: [C, F] float32 or None, rewards of several functions, of which
      `reward` is made; NaN where one does not count. None unless the advantage
      takes them.
    temperature: [C] float32 or None, at which it was sampled. None unless
      `sampling.temperature` is a schedule.
    carried: [C] int32 or None, tokens of the response from before the wave in
      which it left. None unless responses are carried over.
    turn_start, turn_length: [C, U] int32 or None, first column and number of
      the tokens that the model wrote in each turn; 0 behind the last one.
    turn_rewards: [C, U] float32 or None, of the environment, 0 behind the last.
    token_advantages: [C, T] float32 or None, advantages by token; 0 before its
      round. Its `advantage` then sums them up.
    teacher_prompt_length: [C] int32 or None, tokens of the teacher's prompt.
  """
  group = column(np.int64, fill=-1)
  sample = column(np.int32)
  problem = column(np.int32)
  policy_step = column(np.int32)
  reward = column(np.float32)
  valid = column(bool)
  prompt_length = column(np.int32, fill=1)
  length = column(np.int32)
  generated = column(np.int32)
  truncated = column(bool)
  trained = column(bool)
  advantage = column(np.float32, fill=np.nan)
  group_mean = column(np.float32, fill=np.nan)
  group_std = column(np.float32, fill=np.nan)
  entropy = column(np.float32)
  clip_share = column(np.float32)
  usage = column(np.int32)
  round = column(np.int32, fill=-1)
  probe = column(bool)
  shard = column(np.int32)
  separate = column(np.float32, 'F', np.nan, maker='verifier')
  temperature = column(np.float32, fill=1, maker='run')
  carried = column(np.int32, maker='run')
  turn_start = column(np.int32, 'U', maker='run')
  turn_length = column(np.int32, 'U', maker='run')
  turn_rewards = column(np.float32, 'U', maker='environment')
  token_advantages = column(np.float32, 'T', maker='advantage')
  teacher_prompt_length = column(np.int32, fill=1, maker='run')

  @property
  def without_advantage(self) -> np.ndarray:
    """[C] bool, rows whose advantage is 0 for all tokens; not before it is
    known.
    """
    zero = self.advantage == 0.0
    if self.token_advantages is not None:
      zero &= (self.token_advantages == 0.0).all(1)
    return zero


class LearnerBatch(Rows, also=(RolloutTokens, Table)):
  """Rows to train on: the prompt, directly followed by the response.

  Token t of row b's response is in column `prompt_length[b] + t` of `tokens`,
  and is predicted by the column before.

  Attributes:
    tokens: [B, S] int32, prompt then response, right-padded.
    prompt_length: [B] int32.
    response_length: [B] int32; 0 for a filler row.
    mask: [B, T] bool, response tokens that count in the loss.
    behaviour_logprobs: [B, T] float32, as the sampler recorded them: before
      truncation with `loss.behaviour='tempered'`, after it with 'sampled'.
    advantages: [B] float32.
    identity: [B, 3] uint32 or None: seed of the run, group and sample.

  Also those of `RolloutTokens` and `Table` that the run needs. Without
  `old_logprobs` the update uses its own log-probs, which is exact for the first
  update after a rollout. Without `temperature` all rows have that of the loss.
  """
  tokens = column(np.int32, 'S')
  prompt_length = column(np.int32)
  response_length = column(np.int32)
  mask = column(bool, 'T')
  behaviour_logprobs = column(np.float32, 'T')
  advantages = column(np.float32)
  identity = column(np.uint32, 'I', maker='run')


class AdvantageError(ValueError):
  """An advantage is not finite. The state before the step can be saved."""


class NoSignalError(ValueError):
  """The groups of a curriculum have had no signal for too long."""


class Stopped(Exception):
  """The program was asked to stop; its state is saved, or can be."""


class GroupRequests(NamedTuple):
  """Requests of a curriculum to the sampler in one wave, in NumPy.

  Attributes:
    group: [P] int64, ascending where it is new.
    problem: [P] int32, index of its problem in the training set.
    first: [P] int32, number of the first sample asked for.
    count: [P] int32, samples asked for, at least 1.
    probe: [P] bool, whether its samples are an unbiased sample.
  """
  group: np.ndarray
  problem: np.ndarray
  first: np.ndarray
  count: np.ndarray  # type: ignore[assignment]
  probe: np.ndarray

  @property
  def sample(self) -> np.ndarray:
    """[R] int32, number within its group of each sample asked for."""
    before = np.cumsum(self.count) - self.count
    return (np.repeat(self.first - before, self.count) + np.arange(
        self.count.sum())).astype(np.int32)


class Probe(NamedTuple):
  """Means over the valid probe rows of a wave; NaN without such a row.

  Attributes:
    reward: mean reward.
    entropy: mean over the responses of the mean entropy of their tokens, in
      nats, when they were sampled.
    policy_step: optimiser steps behind the policy that wrote them.
    first_wave: the earliest one in which one of them was begun; -1 if all were
      `lag` waves ago.
  """
  reward: float
  entropy: float
  policy_step: int
  first_wave: int = -1


class RunSizes(NamedTuple):
  """Sizes of a run, given to the makers of curricula and selections.

  Attributes:
    problems: D, size of the training set.
    seed: seed of the run.
    batch: B, groups of a train batch.
    samples: n, samples of a group.
    prompts: new groups that a wave begins.
    lag: waves between the sampling of rollouts and the curriculum's `update`.
    response: T, most tokens of a response.
    rounds: most rounds of a wave, known to the makers of selections.
    together: most requests that `update` sees at once; None for those that a
      wave begins.
  """
  problems: int
  seed: int
  batch: int
  samples: int
  prompts: int
  lag: int = 0
  response: int = 1
  rounds: int = 1
  together: Optional[int] = None


class Carry(NamedTuple):
  """Sizes of waves that end before their longest response.

  Attributes:
    steps: decode steps of a wave, on each shard.
    prompts: new groups that a wave begins.
    groups: most groups that it asks for.
    requests: most samples that it asks for.
  """
  steps: int
  prompts: int
  groups: int
  requests: int


class Settings(NamedTuple):
  """Numbers and choices that the steps of a run read, from its config.

  Attributes:
    seed: seed of the run.
    steps: steps of the run.
    samples: n, samples of a group.
    max_prompt: L.
    max_response: T.
    minibatch: rows of an optimiser step.
    epochs: passes over the rows of a round.
    drop_zero_advantage: leave rows without an advantage out of updates.
    skips_zero: do not compute these rows in updates, but count them.
    lag: waves between sampling and training.
    temperature: of the sampler, a number or a schedule.
    tempered: whether a row's behaviour is before truncation.
    advantage: name of the advantage, if it is the user's own; else ''.
    actor_learns: whether the model that writes the responses is trained.
    lam: threshold of the rejection, for the samples that are kept.
    records: groups of which a step keeps the responses.
    workdir: folder of the run.
    carry: of responses that are carried over to the next wave; None if a wave
      waits for all of them.
    teacher_prompt: most tokens of a prompt of the teacher's own; 0 if it reads
      the policy's.
    reward: factors of a reward model's score and of the verifier's reward, with
      a reward model.
    least_reward: that the advantage can take.
  """
  seed: int
  steps: int
  samples: int
  max_prompt: int
  max_response: int
  minibatch: int
  epochs: int
  drop_zero_advantage: bool
  skips_zero: bool
  lag: int
  temperature: float | str
  tempered: bool
  advantage: str
  actor_learns: bool
  lam: float
  records: int
  workdir: str
  carry: Optional[Carry] = None
  teacher_prompt: int = 0
  reward: tuple[float, float] = (0.0, 1.0)
  least_reward: float = -np.inf


class Curriculum(NamedTuple):
  """Choice of the problems to sample, and of the groups to train on.

  A wave is one call of the sampler. In each wave the loop calls `propose`,
  `update` when the rewards are known, then `take`. All functions are pure, and
  states are trees of NumPy arrays and numbers with fixed shapes.

  Attributes:
    init: () -> state.
    propose: (state) -> (state, GroupRequests). May be called again before the
      wave's rewards are known.
    update: (state, GroupRequests, Table, signal [n + 1], gain [P]) -> state,
      once the rewards are in the table. `signal[c]` is the sum of |advantage|
      of a group with c of n right; `gain` is that sum for the complete groups
      of the requests, else NaN.
      Both are of the advantage in use, without scaling by the batch.
      NoSignalError ends the run, after saving the state before the wave.
    take: (state) -> (state, [group [B], ...]), the finished train batches, at
      most `max_rounds`, maybe none.
    holds: (state) -> group [G], whose rows must stay for a later wave.
    capacity: most groups that `holds` returns.
    max_prompts: most groups in GroupRequests.
    max_requests: most samples in GroupRequests.
    max_rounds: most batches taken in a wave.
    stale: whether a group may be taken in a later wave than it was begun in.
    min_count: least samples that GroupRequests ask of a group.
    metrics: (state) -> name to number, after `take`; always the same names.
    summary: (state) -> a sentence for the end of the run, or ''.
  """
  init: Callable[[], Any]
  propose: Callable[[Any], tuple[Any, GroupRequests]]
  update: Callable[[Any, GroupRequests, Table, np.ndarray, np.ndarray], Any]
  take: Callable[[Any], tuple[Any, list[np.ndarray]]]
  holds: Callable[[Any], np.ndarray]
  capacity: int
  max_prompts: int
  max_requests: int
  max_rounds: int
  stale: bool
  min_count: int = 1
  metrics: Callable[[Any], dict[str, float]] = lambda state: {}
  summary: Callable[[Any], str] = lambda state: ''


class Selection(NamedTuple):
  """Choice of the rows that a round trains on.

  Keys are tuples of integers, seeds for `np.random.default_rng`.

  Attributes:
    init: (key) -> state.
    feedback: (state, Probe) -> state, once a wave, before its rounds.
    select: (state, Table, rows [B, n], key) -> (state, rows [K]). Rows are
      those of the round's batch; -1 stands for a sample that is missing or not
      valid, and for filler in the result. Only valid rows whose `round` is set
      may be picked.
    holds: (state, Table) -> [C] bool, rows that must stay for a later wave.
    capacity: most rows held.
    rows: K.
    stale: whether a row may be picked in a later round than its own.
    metrics: (state) -> name to number, after the wave's rounds; always the same
      names.
  """
  init: Callable[[tuple[int, ...]], Any]
  feedback: Callable[[Any, Probe], Any]
  select: Callable[..., tuple[Any, np.ndarray]]
  holds: Callable[[Any, Table], np.ndarray]
  capacity: int
  rows: int
  stale: bool
  metrics: Callable[[Any], dict[str, float]] = lambda state: {}


class Needs(NamedTuple):
  """Needs of a run's methods: columns of its rows, and weights.

  Columns are name to type, None for the declared one; without those that all
  rows have.

  Attributes:
    updates_per_round: optimiser steps of a round.
    updates_per_step: the most optimiser steps of a training step.
    columns: of rollouts, `types.Table` and `types.RolloutTokens`.
    updated: of the batch of an update.
    scored: of the batch of `Learner.score`.
    of_advantage: names of those that the advantage takes.
    axes: letter of an axis of columns to its length.
    top: likeliest tokens that the sampler records; 0 for none.
    behaviour_params: a copy of the parameters that sampled the rows, in
      updates.
  """
  updates_per_round: int
  updates_per_step: int
  columns: dict[str, Any]
  updated: dict[str, Any]
  scored: dict[str, Any]
  of_advantage: tuple[str, ...]
  axes: dict[str, int]
  top: int
  behaviour_params: bool


class Stages(NamedTuple):
  """The stages of a run.

  Attributes:
    curriculum: chooses the problems.
    selection: chooses the rows to train on.
    needs: what the run needs, with them.
    settings: what its steps read.
  """
  curriculum: Curriculum
  selection: Selection
  needs: Needs
  settings: Settings


class Picked(NamedTuple):
  """Rows that a round trained on, without filler.

  Attributes:
    rows: [K] their numbers.
    staleness: [K] optimiser steps between the writing of a row and the round.
    age: [K] rounds since its own.
    usage: [K] rounds that had trained on it before.
  """
  rows: np.ndarray
  staleness: np.ndarray
  age: np.ndarray
  usage: np.ndarray


def rows_of(
    table: Table, groups: np.ndarray, samples: int, *,
    valid: bool = True) -> np.ndarray:
  """Finds the rows of groups.

  Args:
    table: C rows.
    groups: [G].
    samples: n.
    valid: leave out rows whose verification failed.

  Returns:
    [G, n] row numbers in the order of the samples; -1 where one is missing or
    left out.
  """
  names = table.group * samples + table.sample
  there = np.flatnonzero(
      (table.group >= 0) & (table.valid if valid else True))
  there = there[np.argsort(names[there], kind='stable')]
  wanted = np.asarray(groups)[:, None] * samples + np.arange(samples)
  if not len(there):
    return np.full(wanted.shape, -1)
  place = np.minimum(np.searchsorted(names[there], wanted), len(there) - 1)
  return np.where(names[there[place]] == wanted, there[place], -1)
