"""CBS: a contextual bandit picks the rows that a round trains on.

Lu et al., "Contextual Rollout Bandits for Reinforcement Learning with
Verifiable Rewards", Algorithm 1; its equations are in `bandit`. Two scopes:
"global" keeps the rows of the last L rounds, first in first out, and picks as
many as one batch has. "intra_group" (CBS*) picks a share of each group of the
batch, or of the whole batch with `pool`, as the paper's code does.

A round is judged by the first probe that was sampled after its update: V and E
are means over unbiased rows alone. Rounds of one wave share their gain. A wave
without an update is not judged, and a wave without a valid probe row leaves
rounds waiting for the next one. With `actor.lag` a probe arrives some waves
after it was sampled. Where another model writes the rollouts, V and E are that
model's.
"""

from typing import Annotated, Literal, NamedTuple

import numpy as np

from jaxrl_llm.selection import bandit
from jaxrl_llm.selection.replay import buffered, oldest_first
from jaxrl_llm.types import Probe, Selection, Sizes

SCOPES = 'global', 'intra_group'

_Some = Annotated[int, '[1, inf)']
_None = Annotated[int, '[0, inf)']
_Any = Annotated[float, '[0, inf)']
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
  count: np.ndarray
  features: np.ndarray
  weight: np.ndarray


class Measured(NamedTuple):
  """Measurements of a wave, for the metrics; NaN for what did not happen.

  Attributes:
    reward: of the rounds that were judged.
    loss: of the scheduler, mean over these rounds, before their steps.
    epsilon: of the latest round.
    correlations: [F] of the scores and features of the latest round.
  """
  reward: bandit.Reward
  loss: float
  epsilon: float
  correlations: np.ndarray


class State(NamedTuple):
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


def create(
    sizes: Sizes, *, scope: Literal['global', 'intra_group'] = 'global',
    rounds: _Some = 2, keep: Annotated[float, '(0, 1]'] = 0.3,
    pool: bool = False, learning_rate: _Any = 1e-4, width: _Some = 64,
    layers: _None = 2, warmup: _None = 50, epsilon: _Share = 1.0,
    epsilon_decay: _Any = 0.008, epsilon_min: _Share = 0.2,
    alpha: Annotated[float, '(0, 1]'] = 0.9, entropy_weight: _Any = 100.0,
    entropy_min: float = 0.1,
    ablate: Literal['none', 'raw_gain', 'no_entropy'] = 'none') -> Selection:
  """Makes the selection.

  Args:
    sizes: of the run.
    scope: what is picked from; global (the last rounds batches; as many rows as
      one has) or intra_group (a share keep of each group).
    rounds: batches whose rows can be picked, with scope=global.
    keep: share of the responses to train on, rounded down, with
      scope=intra_group.
    pool: with scope=intra_group, pick that share of all groups together.
    learning_rate: learning rate of the scheduler, which scores the responses.
    width: width of the scheduler's hidden layers.
    layers: number of the scheduler's hidden layers.
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

  Returns:
    The selection.

  Raises:
    ValueError: `keep` leaves no row to pick.
  """
  batch, n = sizes.batch, sizes.samples
  replays = scope == 'global'
  length = rounds if replays else 1
  # The share of a pool or of a group, as floor(p n).
  pooled = batch * n if replays else _share(keep, batch * n if pool else n)
  if not pooled:
    rows = batch * n if pool else n
    raise ValueError(
        f'cbs.keep={keep} of {rows} responses is less than one: use at least '
        f'{1 / rows:.3g}.')
  count = pooled if replays or pool else batch * pooled
  network = bandit.Network(width, layers, learning_rate)
  waiting = (sizes.lag + 1) * sizes.rounds
  known = len(bandit.FEATURES)

  def init(key):
    return State(
        waves=0, rounds=0, scheduler=bandit.init(network, key),
        averages=bandit.Gain(), probe=Probe(np.nan, np.nan, -1),
        pending=Pending(
            np.full(waiting, -1), np.zeros(waiting, np.int64),
            np.zeros((waiting, count, known), np.float32),
            np.zeros((waiting, count), np.float32)),
        measured=_nothing())

  def feedback(state, probe):
    sampled = state.waves - sizes.lag  # wave that this probe is of
    state = state._replace(waves=state.waves + 1, measured=_nothing())
    if np.isnan(probe.reward):
      return state
    before = state.probe
    ready = (state.pending.wave >= 0) & (state.pending.wave < sampled)
    judged = Pending(*(x[ready] for x in state.pending))
    state = state._replace(probe=probe, pending=_drop(state.pending, ready))
    if not ready.any() or before.policy_step in (-1, probe.policy_step):
      return state
    averages, reward = bandit.reward(
        state.averages, (before.reward, probe.reward),
        (before.entropy, probe.entropy), alpha=alpha,
        entropy_weight=entropy_weight, entropy_min=entropy_min, ablate=ablate)
    scheduler, losses = state.scheduler, []
    for _, rows, features, weight in zip(*judged):
      scheduler, loss = bandit.train(
          network, scheduler, features[:rows], weight[:rows] * reward.total,
          size=count)
      losses.append(loss)
    return state._replace(
        scheduler=scheduler, averages=averages,
        measured=state.measured._replace(
            reward=reward, loss=float(np.mean(losses))))

  def select(state, table, batch_rows, key):
    there = oldest_first(
        table, buffered(table, state.rounds + 1, length) if replays
        else np.isin(np.arange(len(table.group)), batch_rows))
    rng = np.random.default_rng(key)
    features = bandit.features(
        table, there, rounds=state.rounds, response=sizes.response)
    scheduler = state.scheduler._replace(
        moments=bandit.observe(state.scheduler.moments, features))
    scores = bandit.scores(
        network, scheduler, features, size=length * batch * n)
    now = bandit.epsilon(
        state.rounds + 1, warmup=warmup, start=epsilon, decay=epsilon_decay,
        least=epsilon_min)
    newest = rng.random(count) < now
    # A group's rows stand side by side; small integers sort in linear time.
    bounds = np.array([0, len(there)])
    if not (replays or pool):
      bounds = np.flatnonzero(np.diff(
          table.group[there], prepend=-1, append=-1))
    age = (state.rounds - table.round[there]).astype(np.int16)
    picked = np.concatenate([np.zeros(0, np.int64), *(
        start + bandit.pick(
            scores[start:end], age[start:end],
            newest[i * pooled:(i + 1) * pooled][:end - start],
            rng.permutation(end - start))
        for i, (start, end) in enumerate(zip(bounds[:-1], bounds[1:])))])
    return state._replace(
        rounds=state.rounds + 1, scheduler=scheduler,
        pending=_add(
            state.pending, state.waves - 1, features[picked],
            np.abs(table.advantage[there[picked]])),
        measured=state.measured._replace(
            epsilon=now, correlations=np.array(list(
                bandit.correlations(scores, features).values())))), np.pad(
                    there[picked], (0, count - len(picked)),
                    constant_values=-1)

  def holds(state, table):
    return buffered(table, state.rounds, length - 1)

  return Selection(
      init=init, feedback=feedback, select=select, holds=holds,
      capacity=(length - 1) * batch * n, rows=count, stale=length > 1,
      metrics=metrics)


def metrics(state: State) -> dict[str, float]:
  """Returns the metrics of a wave; NaN for what did not happen in it.

  Args:
    state: after its rounds.

  Returns:
    cbs/gain, entropy_penalty, reward: both terms of the reward of the rounds
    that were judged, and their difference (Eq. 10). cbs/loss: mean squared
    error of the scheduler. cbs/epsilon: probability of a newest row.
    cbs/correlation/x: Pearson's correlation of score and feature x (Fig. 9).
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


def _nothing() -> Measured:
  """Returns the measurements before a wave."""
  return Measured(
      bandit.Reward(np.nan, np.nan, np.nan), np.nan, np.nan,
      np.full(len(bandit.FEATURES), np.nan))


def _share(keep: float, rows: int) -> int:
  """Returns floor(keep * rows); .29 of 100 is 29, though .29 is a bit less."""
  return int(keep * rows + 1e-9)


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
