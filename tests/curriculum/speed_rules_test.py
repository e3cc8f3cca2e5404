"""Tests of what qualifies under SPEED's two rules."""

import numpy as np
import pytest

from jaxrl_llm.curriculum import outcomes, speed
from tests.helpers import screens, tables
from tests.reference import speed as reference


class Observations:
  """The prior as a list of observations with weights, one EM for them all."""

  def __init__(self, n_init, n_cont):
    self._sizes, self._seen = (n_init, n_cont), []
    self.rates = np.linspace(0, 1, 41)
    self.prior = np.full(41, 1 / 41)

  def forget(self):
    self._seen = [(c, d, .98 * weight) for c, d, weight in self._seen]

  def add(self, c, d=None):
    self._seen.append((c, d, 1.0))

  def learn(self, pending):
    seen = self._seen + [(c, None, 1.0) for c in pending]
    weights = np.maximum(self.prior, 1e-6)
    weights = weights / weights.sum()
    likelihood = []
    for c, d, _ in seen:
      likelihood.append(reference.binomial(self._sizes[0], self.rates, c) * (
          1 if d is None else reference.binomial(
              self._sizes[1], self.rates, d)))
    likelihood, share = np.array(likelihood), np.array([s[2] for s in seen])
    for _ in range(50):
      weights = weights * (
          (share / (likelihood @ weights)) @ likelihood) / share.sum()
    self.prior = weights / weights.sum()

  def best(self, signal):
    n_init, n_cont = self._sizes
    outcome = [reference.binomial(n_init, self.rates, c) * self.prior
               for c in range(n_init + 1)]
    value = [sum(
        (weight * reference.binomial(n_cont, self.rates, d)).sum()
        * signal[c + d] for d in range(n_cont + 1)) / weight.sum()
        for c, weight in enumerate(outcome)]
    probability = [weight.sum() for weight in outcome]
    return max(
        reference.subsets(n_init + 1), key=lambda x: (reference.rate_of_set(
            x, value, probability, n_cont), -len(x)))


@pytest.mark.parametrize('signal, flights', [
    (screens.SIGNAL, 1), (np.float32([0, 3, 2.4, 1.2, .3, 0, 0]), 1),
    (screens.SIGNAL, 2)], ids=['rloo', 'pkpo', 'two-waves-in-flight'])
def test_the_signal_rule_as_a_list_of_observations(signal, flights):
  n_init, n_cont = 2, 4
  sizes = tables.sizes_of(3, 12, 6, 500)
  made = speed.create(sizes, n_init=n_init)
  rng, state, held = np.random.default_rng(1), made.init(), {}
  rates = np.random.default_rng(2).choice([0, 0, .1, .6, 1], 500)
  naive, going, sets = Observations(n_init, n_cont), {}, set()
  flying, late = [], 0
  for wave in range(60):
    while len(flying) < flights:
      state, ask = made.propose(state)
      flying.append(ask)
    if wave == 30:
      rates = np.maximum(rates, .9)  # the model has learned
    ask = flying.pop(0)
    table, gain, answers = screens.answer(rng, ask, held, rates.__getitem__)
    state, _ = made.take(made.update(state, ask, table, signal, gain))
    naive.forget()
    right = [int(sum(values)) for _, first, values in answers if not first]
    for group, first, values in answers:
      if first:
        naive.add(going.pop(group), int(sum(values)))
    naive.learn(right + [*going.values()])
    late += len(going)
    best = naive.best(signal)
    assert np.flatnonzero(state.counts.accepts).tolist() == best
    np.testing.assert_allclose(state.known.prior, naive.prior, atol=1e-9)
    for c in right:
      if c not in best:
        naive.add(c)
    going.update((group, int(sum(values))) for group, first, values in answers
                 if not first and int(sum(values)) in best)
    assert state.accepted.group[:len(going)].tolist() == [*going]
    assert (state.accepted.group[len(going):] == -1).all()
    held = {group: held[group] for group in made.holds(state).tolist()}
    sets.add(tuple(best))
  assert sets - {tuple(range(n_init + 1))}  # not always every outcome
  assert (late > 0) == (flights > 1)


def begun(n_init=4, samples=8, prompts=4, **options):
  """Returns a curriculum, its state after `propose`, and its requests."""
  made = speed.create(
      tables.sizes_of(2, prompts, samples, 50), n_init=n_init, **options)
  return made, *made.propose(made.init())


def screened(made, state, ask, rewards, signal=screens.SIGNAL):
  """Returns the state after a wave of screens."""
  table = tables.of_rewards(
      np.random.default_rng(0), dict(zip(ask.group.tolist(), rewards)))
  return made.update(
      state, ask, table, signal, np.full(len(ask.group), np.nan))


@pytest.mark.parametrize('rewards, outcome, qualifies', [
    ([1, 0, None, None], 2, True), ([1, 1, 1, None], 4, False),
    ([1, 0, 0, None], 1, True), ([1, 1, 0, None], 3, True),
    ([0, None, None, None], 0, False), ([None] * 4, None, False)], ids=str)
def test_invalid_samples_of_a_screen(rewards, outcome, qualifies):
  """The outcome of the rounded share of the valid samples."""
  for rule in ('signal', 'pass_rate'):
    made, state, ask = begun(rule=rule)
    # Enough mixed screens that the signal rule wants 1 to 3 right ones.
    state = state._replace(known=state.known._replace(
        screened=np.array([900., 0, 0, 0, 900]),
        continued=np.full((5, 5), 5.0)))
    state = screened(
        made, state, ask, [rewards, *[[0, 0, 0, 0]] * 3],
        np.float32([c * (8 - c) for c in range(9)]))
    assert (0 in made.holds(state).tolist()) == qualifies
    histogram = np.bincount([0] * 3 + [outcome] * (outcome is not None),
                            minlength=5)
    assert state.counts.screened.tolist() == histogram.tolist()


@pytest.mark.parametrize('low, high, qualify', [
    (0, 1, [1, 2, 3]), (.25, 1, [2, 3]), (.2, .75, [1, 2]), (-1, 1, range(4)),
    (.3, .4, [])])
def test_the_paper_s_rule_is_strict(low, high, qualify):
  made, state, ask = begun(prompts=5, rule='pass_rate', p_low=low, p_high=high)
  state = screened(
      made, state, ask, [[1] * c + [0] * (4 - c) for c in range(5)])
  assert made.holds(state).tolist() == [*qualify]
  assert np.flatnonzero(state.counts.accepts).tolist() == [*qualify]


def test_continuous_rewards_learn_the_signal_of_each_outcome():
  """Prompts whose samples are alike, at .2 or .8, have no signal; those that
  vary around .5 do."""
  made = speed.create(tables.sizes_of(4, 40, 8, 1000), n_init=4)
  rng, state, held, last = np.random.default_rng(0), made.init(), {}, []
  for wave in range(40):
    state, ask = made.propose(state)
    for group, problem, count in zip(
        ask.group.tolist(), ask.problem, ask.count):
      centre = (.2, .5, .8)[problem % 3]
      spread = .1 * (problem % 3 == 1)
      held[group] = held.get(group, []) + list(
          centre + spread * rng.uniform(-1, 1, count))
    gain = np.array([screens.gain_of(held[group]) if first else np.nan
                     for group, first in zip(ask.group.tolist(), ask.first)])
    state, _ = made.take(made.update(
        state, ask, tables.of_rewards(rng, held), screens.SIGNAL, gain))
    held = {group: held[group] for group in made.holds(state).tolist()}
    if wave >= 20:
      last.append(state.counts.accepts)
  assert state.known.continuous
  # .2, .5 and .8 are the outcomes 0, 2 and 4.
  share = np.mean(last, 0)
  assert share[2] == 1 and share[0] < .5 and share[4] < .5
  row = made.metrics(state)
  assert np.isnan(row['screening/samples_ratio'])
  assert np.isnan(row['screening/prior/zero'])
  assert 'fewer' not in made.summary(state)


def test_continuous_rewards_may_begin_without_signal():
  """Nothing is known of an outcome whose first groups have no signal."""
  made = speed.create(tables.sizes_of(2, 4, 8, 1000), n_init=4, patience=20)
  rng, state, held, accepted = np.random.default_rng(0), made.init(), {}, 0
  for wave in range(40):
    state, ask = made.propose(state)
    for group, count in zip(ask.group.tolist(), ask.count):
      flat = group < 20
      held[group] = held.get(group, []) + (
          [.5] * count if flat else [*rng.random(count)])
    gain = np.array([
        screens.gain_of(held[group]) if first else np.nan
        for group, first in zip(ask.group.tolist(), ask.first)])
    state, _ = made.take(made.update(
        state, ask, tables.of_rewards(rng, held), screens.SIGNAL, gain))
    held = {group: held[group] for group in made.holds(state).tolist()}
    accepted += state.counts.accepted * (wave > 20)
  assert accepted > 10


def test_accepted_outcomes_of_continuous_rewards_are_scaled():
  made, state, ask = begun(prompts=5, rule='pass_rate')
  state = screened(made, state, ask, [
      [mean] * 4 for mean in (-1, -.5, 0, .5, 1)])
  assert made.holds(state).tolist() == [3]
  assert np.flatnonzero(state.counts.accepts).tolist() == [3]


def test_outcomes_are_scaled_by_the_range_of_the_rewards():
  known = outcomes.with_rewards(outcomes.init(4, 4), np.float32([0, 1, 1]))
  assert not known.continuous
  assert outcomes.of(known, np.array([0, .5, 1, np.nan]), 4).tolist() == [
      0, 2, 4, -1]
  small = outcomes.with_rewards(
      outcomes.init(4, 4), np.float32([.25, .5, .75]))
  assert outcomes.of(small, np.array([.25, .5, .75]), 4).tolist() == [0, 2, 4]
  known = outcomes.with_rewards(known, np.float32([-1, 1]))
  assert known.continuous and (known.least, known.most) == (-1, 1)
  assert outcomes.of(known, np.array([-1., 0, .5, 1]), 4).tolist() == [
      0, 2, 3, 4]


def test_what_two_waves_teach():
  """n_init = n_cont = 2. Counts of the first wave have the factor .98."""
  known = outcomes.with_rejected(outcomes.learn(
      outcomes.init(2, 2), np.array([0, 2, -1, 1]), np.zeros(0, int),
      np.array([1, 2]), np.array([2, -1]), np.array([3, np.nan])),
      np.array([0, -1]))
  # No sample of the second continuation is valid: its screen counts alone.
  assert known.screened.tolist() == [1, 0, 1]
  assert known.continued.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]
  known = outcomes.learn(
      known, np.array([1]), np.array([0]), np.array([1, 0]), np.array([0, 1]),
      np.array([5., 2.]))
  for found, wanted in (
      (known.screened, [.98, 0, .98]),
      (known.continued, [[0, 1, 0], [1, 0, .98], [0, 0, 0]]),
      (known.every, [.98, 1.98, .98]), (known.gains, [1, 1.98, 0]),
      (known.gain, [2, .98 * 3 + 5, 0])):
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize('every, gains, gain, chosen', [
    # Values (0 + 20) / 10, (180 + 20) / 10, 20 / 1. Signal per sample of {1}:
    # .2 * 20 / (2 + 6 * .2) = 1.25, {1, 2} 6 / 3.8 = 1.58, all 7.4 / 8 = .925.
    ([70, 20, 10], [9, 9, 0], [0, 180, 0], [1, 2]),
    # Values 20 / 2, 20, (45 + 20) / 10. {1} 2 / 2.6 = .77, {0, 1} 3 / 3.2 =
    # .94, all 8.2 / 8 = 1.03.
    ([10, 10, 80], [1, 9, 9], [0, 180, 45], [0, 1, 2])], ids=str)
def test_worth_of_outcomes_of_continuous_rewards(every, gains, gain, chosen):
  known = outcomes.init(2, 6)._replace(
      every=np.array(every), gains=np.array(gains), gain=np.array(gain),
      continuous=True)
  assert np.flatnonzero(outcomes.worth(known, None)).tolist() == chosen


@pytest.mark.parametrize('options, said', [
    (dict(n_init=8), 'speed.n_init=8 .*samples_per_prompt=8: lower'),
    (dict(n_init=9), 'speed.n_init=9 '),
    (dict(n_init=0), 'speed.n_init=0 screens nothing'),
    (dict(rule='pass_rate', p_low=.5, p_high=.5), 'speed.p_low=.*below'),
    (dict(n_init=1, rule='pass_rate'), 'n_init=1 .*continues no prompt'),
    (dict(n_init=1, rule='pass_rate', p_low=.25), 'speed.p_low=0.25'),
    (dict(capacity=4), 'speed.capacity=4 .*at least 5 ')])
def test_what_cannot_work_is_one_sentence(options, said):
  with pytest.raises(ValueError, match=said) as error:
    begun(**options)
  assert '\n' not in str(error.value)
