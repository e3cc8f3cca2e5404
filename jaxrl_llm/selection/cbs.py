"""CBS: a contextual bandit picks the rows that a round trains on.

Lu et al., "Contextual Rollout Bandits for Reinforcement Learning with
Verifiable Rewards", arXiv:2602.08499, Algorithm 1; its equations are in
`bandit`. Two scopes: "global" keeps the rows of the last L rounds, first in
first out, and picks as many as one batch has. "intra_group" (CBS*) picks a
share of each group of the batch, or of the whole batch with `pool`, as the
paper's code does.

A round is judged by the first probe that was sampled after its update: V and E
are means over unbiased rows alone. Rounds of one wave share their gain. A wave
without an update is not judged, and a wave without a valid probe row leaves
rounds waiting for the next one. With `actor.lag` a probe arrives some waves
after it was sampled. Where another model writes the rollouts, V and E are that
model's.

Metrics:
  cbs/gain [gain]: of mean reward after the rounds that were judged, squeezed to
    0 to 1 (Eq. 10)
  cbs/entropy_penalty [gain]: for a rise of the entropy (Eq. 10)
  cbs/reward [gain]: their difference, which the scheduler learns
  cbs/loss [gain squared]: mean squared error of the scheduler
  cbs/epsilon [probability]: of a newest row in place of the best
  cbs/correlation/<feature> [correlation]: Pearson's, of score and feature (Fig.
    9)
"""

import dataclasses
from typing import Annotated, Literal, NamedTuple, Sequence

import numpy as np

from jaxrl_llm.selection import bandit
from jaxrl_llm.selection.replay import buffered, oldest_first, scope_of
from jaxrl_llm.types import Probe, RunSizes, Selection, Table

_Count = Annotated[int, '[1, inf)']
_Positive = Annotated[float, '[0, inf)']
_Share = Annotated[float, '[0, 1]']


class Pending(NamedTuple):
  """Rounds that are not judged yet, the oldest first.

  Attributes:
    wave: [Q] int64, wave of the round; -1 after the rounds.
    count: [Q] int64, rows that it picked.
    features: [Q, K, F] float32, of these rows.
    weight: [Q, K] float32, |advantage| of these rows.
  """
  wave: np.ndarray
  count: np.ndarray  # type: ignore[assignment]
  features: np.ndarray
  weight: np.ndarray


class Measured(NamedTuple):
  """Measurements of a wave, for the metrics; NaN for missing events.

  Attributes:
    reward: of the rounds that were judged.
    loss: of the scheduler, mean over these rounds, before their steps.
    epsilon: of the latest round.
    correlations: [F] of the scores and features of the latest round.
  """
  reward: bandit.BanditReward = bandit.BanditReward(np.nan, np.nan, np.nan)
  loss: float = np.nan
  epsilon: float = np.nan
  correlations: np.ndarray = np.full(len(bandit.FEATURES), np.nan)


class CbsState(NamedTuple):
  """State of the selection.

  Attributes:
    waves: waves begun.
    rounds: rounds done.
    scheduler: parameters, optimiser and moments.
    averages: of the gain.
    probe: the latest with a valid row; its policy_step is -1 before the first.
    pending: rounds that are not judged yet.
    measured: in this wave.
  """
  waves: int
  rounds: int
  scheduler: bandit.Scheduler
  averages: bandit.Gain
  probe: Probe
  pending: Pending
  measured: Measured


@dataclasses.dataclass(frozen=True)
class Options(bandit.Network):
  """Hyperparameters of the selection.

  Attributes:
    scope: what is picked from; global (the last rounds batches; as many rows as
      one has) or intra_group (a share keep of each group).
    rounds: batches whose rows can be picked, with scope=global.
    keep: share of the responses to train on, rounded down, with
      scope=intra_group.
    pool: with scope=intra_group, pick that share of all groups together.
    warmup: batches at the start that train on the newest responses.
    epsilon: probability of the newest response in place of the best one, at the
      start.
    epsilon_decay: what a batch takes off that probability once warmup is over,
      counted from the first batch.
    epsilon_min: least probability of the newest response.
    alpha: weight of the NEWEST gain in its averages; at .9 the squeezed gain
      lies between .26 and .74.
    entropy_weight: penalty of a nat by which the entropy rises above
      entropy_min; at 100 it can dwarf the gain.
    entropy_min: nats per token up to which no rise of the entropy is penalised.
    ablate: part of the reward to leave out; none, raw_gain (averages and
      sigmoid of the gain) or no_entropy (the penalty).
  """
  scope: Literal['global', 'intra_group'] = 'global'
  rounds: _Count = 2
  keep: Annotated[float, '(0, 1]'] = 0.3
  pool: bool = False
  warmup: Annotated[int, '[0, inf)'] = 50
  epsilon: _Share = 1.0
  epsilon_decay: _Positive = 0.008
  epsilon_min: _Share = 0.2
  alpha: Annotated[float, '(0, 1]'] = 0.9
  entropy_weight: _Positive = 100.0
  entropy_min: float = 0.1
  ablate: Literal['none', 'raw_gain', 'no_entropy'] = 'none'


def _judging(probe: Probe) -> Probe:
  """Leaves out `first_wave`, which checkpoints of older runs do not have."""
  return probe._replace(first_wave=None)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class _Cbs:
  """Functions of the selection, see `types.Selection`.

  Attributes:
    sizes: numbers of problems, groups and samples, and lengths.
    rounds, rows, share: see `replay.Scope`.
    options: hyperparameters; they are also the scheduler's network.
  """
  sizes: RunSizes
  rounds: int
  rows: int
  share: int | None
  options: Options

  def init(self, key: Sequence[int]) -> CbsState:
    """Returns the state before the first wave."""
    waiting = (self.sizes.lag + 1) * self.sizes.rounds
    return CbsState(
        waves=0, rounds=0, scheduler=bandit.init(self.options, key),
        averages=bandit.Gain(), probe=_judging(Probe(np.nan, np.nan, -1)),
        pending=Pending(
            np.full(waiting, -1), np.zeros(waiting, np.int64),
            np.zeros((waiting, self.rows, len(bandit.FEATURES)), np.float32),
            np.zeros((waiting, self.rows), np.float32)),
        measured=Measured())

  def feedback(self, state: CbsState, probe: Probe) -> CbsState:
    """Judges the rounds before the probe, and trains the scheduler on them."""
    sampled = probe.first_wave  # what was picked before is judged
    if sampled < 0:
      sampled = state.waves - self.sizes.lag
    state = state._replace(waves=state.waves + 1, measured=Measured())
    if np.isnan(probe.reward):
      return state
    before = state.probe
    ready = (state.pending.wave >= 0) & (state.pending.wave < sampled)
    judged = Pending(*(x[ready] for x in state.pending))
    state = state._replace(
        probe=_judging(probe), pending=_drop(state.pending, ready))
    if not ready.any() or before.policy_step in (-1, probe.policy_step):
      return state
    options = self.options
    averages, reward = bandit.reward(
        state.averages, (before.reward, probe.reward),
        (before.entropy, probe.entropy), alpha=options.alpha,
        entropy_weight=options.entropy_weight, entropy_min=options.entropy_min,
        ablate=options.ablate)
    scheduler, losses = state.scheduler, []
    for _, rows, features, weight in zip(*judged):
      scheduler, loss = bandit.train(
          options, scheduler, features[:rows],
          weight[:rows] * reward.total, size=self.rows)
      losses.append(loss)
    return state._replace(
        scheduler=scheduler, averages=averages,
        measured=state.measured._replace(
            reward=reward, loss=float(np.mean(losses))))

  def select(
      self, state: CbsState, table: Table, batch: np.ndarray,
      key: Sequence[int]) -> tuple[CbsState, np.ndarray]:
    """Picks the rows of a round, and notes them until they are judged."""
    del batch  # the rows of the latest round
    there = oldest_first(
        table, buffered(table, state.rounds + 1, self.rounds))
    rng = np.random.default_rng(key)
    features = bandit.features(
        table, there, rounds=state.rounds, response=self.sizes.response)
    scheduler = state.scheduler._replace(
        moments=bandit.observe(state.scheduler.moments, features))
    options = self.options
    scores = bandit.scores(
        options, scheduler, features,
        size=self.rounds * self.sizes.batch * self.sizes.samples)
    epsilon = bandit.epsilon(
        state.rounds + 1, warmup=options.warmup, start=options.epsilon,
        decay=options.epsilon_decay, least=options.epsilon_min)
    newest = rng.random(self.rows) < epsilon
    age = (state.rounds - table.round[there]).astype(np.int16)
    picked = self._pick(table.group[there], scores, age, newest, rng)
    correlations = bandit.correlations(scores, features)
    return state._replace(
        rounds=state.rounds + 1, scheduler=scheduler,
        pending=_add(
            state.pending, state.waves - 1, features[picked],
            np.abs(table.advantage[there[picked]])),
        measured=state.measured._replace(
            epsilon=epsilon,
            correlations=np.array(list(correlations.values())))), np.pad(
                there[picked], (0, self.rows - len(picked)),
                constant_values=-1)

  def _pick(
      self, group: np.ndarray, scores: np.ndarray, age: np.ndarray,
      newest: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns the candidates to train on, picked from all or by group.

    Args:
      group: [M] of each candidate; those of a group stand side by side.
      scores: [M].
      age: [M] rounds; small integers sort in linear time.
      newest: [K] bool, whether a place gets the newest candidate.
      rng: breaks ties.
    """
    bounds, share = np.array([0, len(group)]), self.rows
    if self.share is not None:
      bounds = np.flatnonzero(np.diff(group, prepend=-1, append=-1))
      share = self.share
    return np.concatenate([np.zeros(0, np.int64), *(
        start + bandit.pick(
            scores[start:end], age[start:end],
            newest[i * share:(i + 1) * share][:end - start],
            rng.permutation(end - start))
        for i, (start, end) in enumerate(zip(bounds[:-1], bounds[1:])))])

  def holds(self, state: CbsState, table: Table) -> np.ndarray:
    """Returns [C] bool, rows that a later round may pick."""
    return buffered(table, state.rounds, self.rounds - 1)


def create(sizes: RunSizes, options: Options) -> Selection:
  """Makes the selection.

  Args:
    sizes: numbers of problems, groups and samples, and lengths.
    options: hyperparameters.

  Returns:
    The selection.

  Raises:
    ValueError: `keep` leaves no row to pick.
  """
  scope = scope_of(
      sizes, 'cbs', scope=options.scope, rounds=options.rounds,
      keep=options.keep, pool=options.pool)
  cbs = _Cbs(sizes, *scope, options)
  return Selection(
      init=cbs.init, feedback=cbs.feedback, select=cbs.select, holds=cbs.holds,
      capacity=(scope.rounds - 1) * sizes.batch * sizes.samples,
      rows=scope.rows, stale=scope.rounds > 1, metrics=metrics)


def metrics(state: CbsState) -> dict[str, float]:
  """Returns the metrics of a wave; NaN for events that it did not have.

  Args:
    state: after its rounds.

  Returns:
    The module's metrics.
  """
  found = state.measured
  row = {
      'gain': found.reward.gain,
      'entropy_penalty': found.reward.entropy_penalty,
      'reward': found.reward.total, 'loss': found.loss,
      'epsilon': found.epsilon,
      **{f'correlation/{name}': value
         for name, value in zip(bandit.FEATURES, found.correlations)}}
  return {f'cbs/{name}': float(value) for name, value in row.items()}


def _drop(pending: Pending, which: np.ndarray) -> Pending:
  """Removes rounds."""
  there = (pending.wave >= 0) & ~which
  free = len(there) - there.sum()
  return Pending(*(
      np.concatenate([x[there], np.full((free, *x.shape[1:]), value, x.dtype)])
      for x, value in zip(pending, (-1, 0, 0, 0))))


def _add(
    pending: Pending, wave: int, features: np.ndarray, weight: np.ndarray,
) -> Pending:
  """Adds a round; the oldest one goes if there is no room."""
  if (pending.wave >= 0).all():
    pending = _drop(pending, np.arange(len(pending.wave)) == 0)
  place = int((pending.wave >= 0).sum())
  made = Pending(*(x.copy() for x in pending))
  made.wave[place], made.count[place] = wave, len(weight)
  made.features[place, :len(weight)] = features
  made.weight[place, :len(weight)] = weight
  return made
