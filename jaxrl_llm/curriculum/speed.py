"""SPEED: screen a prompt with a few samples, pay for the rest if it qualifies.

Zhang et al., 2025, arXiv:2506.09016, withdrawn in 2026. A new group gets n_init
samples. If their outcome qualifies, the next wave samples the other n_cont, in
the same call that screens new groups. Finished groups wait, first in first out,
until B of them make a train batch. Every group is screened once, and none that
is finished is dropped.

Two rules say which groups qualify. "pass_rate" is the paper's: p_low < mean
reward < p_high. "signal" continues the outcomes that give the most signal per
generated sample under the advantage in use, see `ops.screening`. At k = 1 this
is the paper's rule for most distributions of pass rates; under PKPO with k > 1
it leaves out groups of which too many samples are right.

With RLOO the screened objective is Phi(p) in place of the pass rate p (Theorem
4.1, `ops.screening.objective_slope`). The objective differs under GRPO's
standard deviation and under PKPO. The samples of a group come from policies
some updates apart, so their old log-probs are kept. Screens are unbiased
samples of their problems, continuations are not: only screens are probes.

Metrics:
  screening/screened [prompts]: screened in the wave, with a valid sample
  screening/accepted [prompts]: that qualified in the wave
  screening/continued [groups]: finished in the wave
  screening/waiting [groups]: that wait for a train batch
  screening/screened/<c> [groups]: screened with c right samples of n_init
  screening/trained/<c> [groups]: in train batches, by their pass rate, rounded
    to c of n_init
  screening/accepts/<c> [0 or 1]: whether this outcome qualifies
  screening/prior/zero [probability]: that a pass rate is 0
  screening/prior/one [probability]: that a pass rate is 1
  screening/prior/mean [share]: mean pass rate
  screening/trained_tokens [share]: the run's response tokens whose groups were
    taken into a batch
  screening/samples_ratio [ratio]: samples of the run to those that dynamic
    sampling would need for as much signal; an estimate under the prior, without
    the overlong penalty
  screening/dry [waves]: since a finished group had signal
"""

import dataclasses
from typing import Annotated, Literal, NamedTuple

import numpy as np

from jaxrl_llm.curriculum import order, outcomes, queues
from jaxrl_llm.ops import screening
from jaxrl_llm.types import (
  Curriculum,
  GroupRequests,
  NoSignalError,
  rows_of,
  RunSizes,
  Table,
)

_Count = Annotated[int, '[1, inf)']


class Accepted(NamedTuple):
  """Groups that qualified and are not finished, first in first out.

  Attributes:
    group: [Q] int64; -1 after them.
    outcome: [Q] int32, outcome of the screen.
    asked: [Q] bool, whether the continuation was asked for.
  """
  group: np.ndarray
  outcome: np.ndarray
  asked: np.ndarray


class Finished(NamedTuple):
  """Groups that wait for a train batch, first in first out.

  Attributes:
    group: [Q] int64; -1 after them.
    rate: [Q] int32, the pass rate, rounded to the nearest outcome.
    tokens: [Q] int64, tokens of all responses.
  """
  group: np.ndarray
  rate: np.ndarray
  tokens: np.ndarray


class ScreenCounts(NamedTuple):
  """Counts for the metrics.

  Attributes:
    screened: [n_init + 1] int64, groups screened in the last wave, by outcome.
    trained: [n_init + 1] int64, groups in train batches of the last wave, by
      `Finished.rate`.
    accepts: [n_init + 1] bool, outcomes that qualified in the last wave.
    accepted: groups that qualified in the last wave.
    finished: groups that were finished in the last wave.
    groups: groups screened in the run.
    continued: groups finished in the run.
    samples: samples of the groups that were rejected or finished in the run.
    dynamic: estimate of the samples with which dynamic sampling, which samples
      every group whole, has as much signal; NaN for continuous rewards.
    tokens: response tokens generated in the run.
    taken: response tokens of the groups that were taken into a batch.
  """
  screened: np.ndarray
  trained: np.ndarray
  accepts: np.ndarray
  accepted: int = 0
  finished: int = 0
  groups: int = 0
  continued: int = 0
  samples: int = 0
  dynamic: float = 0.0
  tokens: int = 0
  taken: int = 0


class SpeedState(NamedTuple):
  """State of the curriculum.

  Attributes:
    position: groups begun since the start of the run.
    in_flight: groups whose screen was asked for and is not known yet.
    accepted: groups to continue.
    finished: groups that wait for a batch.
    known: statistics of the screens.
    dry: [n_init + 1] int64, screens by outcome since a finished group had
      signal.
    dry_waves: waves since then.
    counts: for the metrics.
  """
  position: int
  in_flight: int
  accepted: Accepted
  finished: Finished
  known: outcomes.Known
  dry: np.ndarray
  dry_waves: int
  counts: ScreenCounts


@dataclasses.dataclass(frozen=True)
class _Speed:
  """Functions of the curriculum, see `types.Curriculum`.

  Attributes:
    sizes, n_init, rule, p_low, p_high, capacity, max_rounds, patience: see
      `create`; none of them is None.
  """
  sizes: RunSizes
  n_init: int
  rule: str
  p_low: float
  p_high: float
  capacity: int
  max_rounds: int
  patience: int

  @property
  def n_cont(self) -> int:
    """Samples that continue a group."""
    return self.sizes.samples - self.n_init

  def init(self) -> SpeedState:
    """Returns the state before the first wave."""
    none = np.zeros(self.n_init + 1, np.int64)
    return SpeedState(
        position=0, in_flight=0, accepted=queues.empty(
            Accepted, self.capacity, outcome=np.int32, asked=bool),
        finished=queues.empty(Finished, self.capacity, rate=np.int32),
        known=outcomes.init(self.n_init, self.n_cont), dry=none, dry_waves=0,
        counts=ScreenCounts(none, none, none.astype(bool)))

  def propose(self, state: SpeedState) -> tuple[SpeedState, GroupRequests]:
    """Asks for the rest of groups that qualified, and screens new ones."""
    prompts, accepted = self.sizes.prompts, queues.present(state.accepted)
    full = len(self.holds(state)) + state.in_flight + prompts > self.capacity
    rest = np.flatnonzero(~accepted.asked)[:prompts]
    accepted.asked[rest] = True
    new = state.position + np.arange(0 if full else prompts)
    group = np.concatenate([accepted.group[rest], new])
    first = np.repeat(
        np.array([self.n_init, 0], np.int32), [len(rest), len(new)])
    return state._replace(
        position=state.position + len(new),
        in_flight=state.in_flight + len(new),
        accepted=queues.padded(accepted, self.capacity)), GroupRequests(
            group=group, first=first, problem=order.at(
                group, self.sizes.problems, self.sizes.seed).astype(np.int32),
            count=np.where(first, self.n_cont, self.n_init).astype(np.int32),
            probe=first == 0)

  def update(
      self, state: SpeedState, ask: GroupRequests, table: Table,
      signal: np.ndarray, gain: np.ndarray) -> SpeedState:
    """Learns from a wave, and moves its groups from queue to queue."""
    n, new, rest = self.sizes.samples, ask.first == 0, ask.first > 0
    there = rows_of(table, ask.group, n, valid=False)
    valid = np.where(table.at(there).valid, there, -1)
    asked = (np.arange(n) < self.n_init) == new[:, None]
    rate = _mean(table, np.where(asked, valid, -1))  # of this wave's samples
    known = outcomes.with_rewards(
        state.known, table.reward[valid[asked & (valid >= 0)]])

    # Groups that are finished leave the queue of those that go on.
    accepted = queues.present(state.accepted)
    done = np.isin(accepted.group, ask.group[rest])
    was, accepted = accepted.outcome[done], queues.some(accepted, ~done)

    outcome = outcomes.of(known, rate[new], self.n_init)
    known = outcomes.learn(
        known, outcome, accepted.outcome, was,
        outcomes.of(known, rate[rest], self.n_cont), gain[rest])
    accepts, good = self._qualify(known, rate[new], outcome, signal)
    known = outcomes.with_rejected(known, outcome[~good])

    accepted = queues.joined(accepted, Accepted(
        ask.group[new][good], outcome[good], np.zeros(good.sum(), bool)))
    whole = outcomes.of(known, _mean(table, valid[rest]), self.n_init)
    finished = queues.joined(queues.present(state.finished), Finished(
        ask.group[rest], np.maximum(whole, 0),
        table.at(there[rest]).length.sum(1, dtype=np.int64)))

    screened = np.bincount(outcome[outcome >= 0], minlength=self.n_init + 1)
    found = float(np.nansum(gain[rest]))  # signal of the finished groups
    state = self._check_signal(state, ask, screened, found)
    old, finishes = state.counts, int(rest.sum())
    samples = self.n_init * int((~good).sum()) + n * finishes
    whole_signal = np.nan if known.continuous else (
        screening.mean_signal(known.prior, signal))
    counts = old._replace(
        screened=screened, accepts=accepts, accepted=int(good.sum()),
        finished=finishes, groups=old.groups + len(good),
        continued=old.continued + finishes, samples=old.samples + samples,
        dynamic=old.dynamic + (
            n * _ratio(found, whole_signal) if found else 0.0),
        tokens=old.tokens + int(
            table.at(np.where(asked, there, -1)).length.sum()))
    return state._replace(
        in_flight=state.in_flight - len(good), known=known,
        accepted=queues.padded(accepted, self.capacity),
        finished=queues.padded(finished, self.capacity), counts=counts)

  def _qualify(
      self, known: outcomes.Known, rate: np.ndarray, outcome: np.ndarray,
      signal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns [n_init + 1] outcomes, and [P] new groups, that qualify."""
    if self.rule == 'signal':
      accepts = outcomes.worth(known, signal)
      return accepts, (outcome >= 0) & accepts[outcome]
    rates = np.linspace(*outcomes.scale(known), self.n_init + 1)
    return (_between(rates, self.p_low, self.p_high),
            _between(rate, self.p_low, self.p_high))

  def _check_signal(
      self, state: SpeedState, ask: GroupRequests, screened: np.ndarray,
      found: float) -> SpeedState:
    """Counts waves without signal; raises NoSignalError after `patience`."""
    dry = np.zeros_like(screened) if found else state.dry + screened
    # A wave in which nothing was asked for says nothing.
    dry_waves = 0 if found else state.dry_waves + (len(ask.group) > 0)
    if dry_waves >= self.patience:
      wider = ', widen speed.p_low and speed.p_high' * (
          self.rule == 'pass_rate')
      seen = ', '.join(
          f'{c} of {self.n_init}: {count:,}' for c, count in enumerate(dry))
      raise NoSignalError(
          'curriculum=speed: no group with signal was finished in '
          f'{dry_waves} steps in a row (speed.patience), in which prompts were '
          f'screened with these outcomes: {seen}; train on problems '
          f'that the model sometimes solves{wider}, or raise speed.patience.')
    return state._replace(dry=dry, dry_waves=dry_waves)

  def take(self, state: SpeedState) -> tuple[SpeedState, list[np.ndarray]]:
    """Takes the batches that are full, at most `max_rounds` of them."""
    batch, finished = self.sizes.batch, queues.present(state.finished)
    end = min(len(finished.group) // batch, self.max_rounds) * batch
    taken = queues.some(finished, slice(end))
    rest = queues.padded(
        queues.some(finished, slice(end, None)), self.capacity)
    counts = state.counts._replace(
        trained=np.bincount(taken.rate, minlength=self.n_init + 1),
        taken=state.counts.taken + int(taken.tokens.sum()))
    return state._replace(finished=rest, counts=counts), [
        taken.group[i:i + batch] for i in range(0, end, batch)]

  def holds(self, state: SpeedState) -> np.ndarray:
    """Returns the groups whose rows the buffer must keep."""
    return np.concatenate([
        queues.present(queue).group
        for queue in (state.accepted, state.finished)])


def create(
    sizes: RunSizes, *, n_init: _Count = 4,
    rule: Literal['signal', 'pass_rate'] = 'signal',
    p_low: float = 0.0, p_high: float = 1.0,
    capacity: Annotated[int | None, '[1, inf)'] = None,
    max_rounds: Annotated[int | None, '[1, inf)'] = None,
    patience: Annotated[int, '[1, inf)', 'free'] = 50) -> Curriculum:
  """Makes the curriculum.

  Args:
    sizes: numbers of problems, groups and samples, and lengths.
    n_init: samples that screen a prompt; prompts that qualify are continued to
      samples_per_prompt.
    rule: what qualifies; signal (the outcomes with the most |advantage| per
      sample, under a prior learned from the run's screens) or pass_rate (mean
      reward between p_low and p_high).
    p_low: with pass_rate, the mean reward of a screen must be above this.
    p_high: with pass_rate, the mean reward of a screen must be below this.
    capacity: groups that are continued or wait for a batch; screening pauses
      while there is no room for those of a step (none: room for two steps and
      actor.lag).
    max_rounds: most batches trained on in a step (none: all that are full).
    patience: steps in a row without a finished group that has signal, after
      which the run ends.

  Returns:
    The curriculum.

  Raises:
    ValueError: there is nothing to screen or to continue, no prompt can
      qualify, or the capacity cannot fill a batch.
  """
  batch, prompts, n = sizes.batch, sizes.prompts, sizes.samples
  least = batch - 1 + prompts
  if n_init < 1:
    raise ValueError(f'speed.n_init={n_init} screens nothing: use at least 1.')
  if n_init >= n:
    raise ValueError(
        f'speed.n_init={n_init} leaves nothing to continue of '
        f'samples_per_prompt={n}: lower it, or raise samples_per_prompt.')
  if p_low >= p_high:
    raise ValueError(
        f'speed.p_low={p_low} is not below speed.p_high={p_high}, so no prompt '
        'qualifies: lower it.')
  if rule == 'pass_rate' and n_init == 1 and not any(
      p_low < rate < p_high for rate in (0, 1)):
    raise ValueError(
        'speed.n_init=1 with speed.rule=pass_rate continues no prompt, since '
        'the mean of one reward, 0 or 1, is not between speed.p_low='
        f'{p_low:g} and speed.p_high={p_high:g}: raise speed.n_init, or use '
        'speed.rule=signal.')
  if capacity is None:
    capacity = least + (1 + sizes.lag) * prompts
  if capacity < least:
    raise ValueError(
        f'speed.capacity={capacity} cannot fill a batch: use at least {least} '
        '(prompts_per_step - 1 + curriculum_prompts).')
  if max_rounds is None:
    max_rounds = (batch - 1 + (sizes.together or prompts)) // batch
  speed = _Speed(
      sizes, n_init, rule, p_low, p_high, capacity, max_rounds, patience)
  return Curriculum(
      init=speed.init, propose=speed.propose, update=speed.update,
      take=speed.take, holds=speed.holds, capacity=capacity,
      max_prompts=2 * prompts, max_requests=prompts * n, max_rounds=max_rounds,
      stale=True, min_count=min(n_init, speed.n_cont), metrics=metrics,
      summary=summary)


def metrics(state: SpeedState) -> dict[str, float]:
  """Returns the metrics of the last wave and of the run so far.

  Args:
    state: after `take`.

  Returns:
    The metrics; those of the prior and samples_ratio are NaN for continuous
    rewards.
  """
  counts, prior = state.counts, state.known.prior
  if state.known.continuous:
    prior = np.full(len(prior), np.nan)
  row = {
      'screened': counts.screened.sum(), 'accepted': counts.accepted,
      'continued': counts.finished,
      'waiting': len(queues.present(state.finished).group),
      'prior/zero': prior[0], 'prior/one': prior[-1],
      'prior/mean': prior @ screening.grid(len(prior)),
      'trained_tokens': _ratio(counts.taken, counts.tokens),
      'samples_ratio': _ratio(counts.samples, counts.dynamic),
      'dry': state.dry_waves}
  for name in ('screened', 'trained', 'accepts'):
    row |= {f'{name}/{c}': value
            for c, value in enumerate(getattr(counts, name))}
  return {f'screening/{name}': float(value) for name, value in row.items()}


def summary(state: SpeedState) -> str:
  """Returns a sentence about the samples that the run took and saved."""
  counts = state.counts
  text = (f'SPEED screened {counts.groups:,} prompts and continued '
          f'{counts.continued:,}: {counts.samples:,} samples')
  ratio = _ratio(counts.samples, counts.dynamic)
  if np.isnan(ratio):
    return f'{text}.'
  return (f'{text}, {abs(1 - ratio):.0%} {"fewer" if ratio < 1 else "more"} '
          'than dynamic sampling would need for as much signal (estimated).')


def _ratio(part: float, whole: float) -> float:
  """Returns a ratio, NaN if there is nothing to compare with."""
  return part / whole if whole > 0 else np.nan


def _between(rate: np.ndarray, low: float, high: float) -> np.ndarray:
  """Returns whether rates lie strictly between two; a NaN does not."""
  return (low < rate) & (rate < high)


def _mean(table: Table, rows: np.ndarray) -> np.ndarray:
  """Returns the mean reward [P] of rows [P, n]; -1 is none, NaN without any.
  """
  count = (rows >= 0).sum(1)
  total = table.at(rows).reward.sum(1, dtype=np.float64)
  return np.divide(
      total, count, out=np.full(len(rows), np.nan), where=count > 0)
