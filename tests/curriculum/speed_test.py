"""Tests of SPEED against a naive twin with made-up rewards."""

import collections

import jax
import numpy as np
import pytest

from jaxrl_llm import rollout
from jaxrl_llm.curriculum import outcomes, speed
from jaxrl_llm.ops import advantages, screening
from jaxrl_llm.types import NoSignalError, Sizes
from tests import tables, tiny
from tests.reference import speed as reference

WAVES = 1000
# Signal of RLOO with 6 samples, and of any group in a test that ignores it.
SIGNAL = np.float32([2 * c * (6 - c) / 5 for c in range(7)])

# B, P, n, D; n_init, capacity, max_rounds: n_init below, equal to and above the
# number of continuations; little and much room; few batches taken.
CASES = [
    ((4, 6, 6, 11), 2, None, None), ((4, 3, 6, 40), 3, 6, None),
    ((3, 7, 6, 50), 4, 9, 1), ((2, 5, 6, 4), 1, 14, 1),
    ((5, 2, 6, 3), 5, None, 1)]


def sizes_of(batch, prompts, samples, problems, seed=3):
  return Sizes(
      problems=problems, seed=seed, batch=batch, samples=samples,
      prompts=prompts)


def gain_of(values):
  """Sum of |RLOO|, from its definition; None is not valid."""
  valid = [value for value in values if value is not None]
  return sum(abs(
      value - (sum(valid) - value) / (len(valid) - 1)) for value in valid) if (
          len(valid) > 1) else 0.0


def answer(rng, ask, held, rates, failures=0.0):
  """Answers an Ask with right and wrong samples.

  Args:
    rng: draws.
    ask: of the curriculum.
    held: {group: rewards}, which gets the answers.
    rates: (problem) -> pass rate.
    failures: share of verifications that fail.

  Returns:
    Table of all in `held`, gain [P], and what the twin takes.
  """
  wave, gain = [], []
  for group, problem, first, count in zip(
      ask.group.tolist(), ask.problem, ask.first.tolist(), ask.count):
    right = rng.random(count) < rates(problem)
    values = [None if rng.random() < failures else float(x) for x in right]
    assert len(held.get(group, [])) == first
    held[group] = held.get(group, []) + values
    wave.append((group, first, values))
    gain.append(gain_of(held[group]) if first else np.nan)
  return tables.of_rewards(rng, held), np.array(gain), wave


@pytest.mark.parametrize('case, flights', [
    *((case, 1) for case in CASES), (CASES[0], 3), (CASES[2], 3)], ids=str)
def test_as_the_naive_twin(case, flights):
  """1,000 waves, of which up to `flights` are sampled at the same time."""
  sizes, n_init, capacity, most = case
  sizes = sizes_of(*sizes)
  low = 0 if n_init > 1 else -1  # one sample is never between 0 and 1
  made = speed.create(
      sizes, n_init=n_init, rule='pass_rate', p_low=low, capacity=capacity,
      max_rounds=most, patience=WAVES)
  twin = reference.Speed(
      sizes, n_init, lambda rate: rate is not None and low < rate < 1,
      made.capacity, made.max_rounds)
  rng = np.random.default_rng(sizes.batch)
  # Seasons in which most prompts qualify, and some in which few do.
  season = lambda wave: (lambda problem: (.5, .04, .9)[
      (problem + wave // 20) % (1 + wave // 20 % 3)])
  state = made.init()
  shape, held, flying = tables.form(state), {}, []
  begun, finished, trained = [], set(), []
  used = collections.Counter()
  for wave in range(WAVES):
    while len(flying) < rng.integers(1, flights + 1):
      state, ask = made.propose(state)
      wanted = twin.propose()
      assert list(zip(
          ask.group.tolist(), ask.problem.tolist(), ask.first.tolist(),
          ask.count.tolist())) == wanted
      assert ask.probe.tolist() == [not first for _, _, first, _ in wanted]
      assert ask.group.dtype == np.int64 and ask.count.dtype == np.int32
      assert len(wanted) <= made.max_prompts
      assert ask.count.sum() <= made.max_requests
      assert ask.count.min(initial=made.min_count) >= made.min_count
      begun += [group for group, _, first, _ in wanted if not first]
      used['empty'] += not wanted
      used['paused'] += 0 in twin.accepted or not (ask.first == 0).any()
      flying.append(ask)

    ask = flying.pop(0)
    table, gain, answers = answer(
        rng, ask, held, season(wave), failures=.1 * (wave % 7 == 0))
    before = wave % 50 == 0 and jax.tree.map(
        np.copy, (state, table))
    after = made.update(state, ask, table, SIGNAL, gain)
    assert not before or tiny.same(before, (state, table))  # it is pure
    state, taken = made.take(after)
    twin.update(answers)
    finished.update(group for group, first, _ in answers if first)
    assert [batch.tolist() for batch in taken] == twin.take()
    assert made.holds(state).tolist() == twin.accepted + twin.finished
    assert tables.form(state) == shape

    trained += np.ravel(taken).tolist()
    full = len(made.holds(state)) + sum(
        (ask.first == 0).sum() for ask in flying)
    assert full <= made.capacity
    used['full'] += full > made.capacity - sizes.prompts
    used['several'] += len(taken) > 1
    held = {group: held[group] for group in made.holds(state).tolist()}

  # Every group is screened once, in their order, and its problem once an epoch;
  # none that is finished is lost, and none is trained twice.
  assert begun == list(range(len(begun))) and len(begun) > 3 * sizes.problems
  assert len(trained) == len(set(trained)) > 100
  assert set(trained) | set(twin.finished) == finished
  assert trained == sorted(trained) or flights > 1 or sizes.prompts > 2
  if capacity:
    assert used['full'] and used['paused']
  counts = state.counts
  assert counts.groups == len(begun) - state.in_flight
  assert counts.continued == len(finished)


def test_a_full_buffer_pauses_the_screening_and_then_empties():
  """Batches are taken one a wave; a wave may have nothing to sample."""
  sizes = sizes_of(2, 6, 4, 50)
  made = speed.create(
      sizes, n_init=2, rule='pass_rate', capacity=7, max_rounds=1)
  rng, state, held, rows = np.random.default_rng(0), made.init(), {}, []
  for _ in range(8):
    state, ask = made.propose(state)
    table, gain, _ = answer(rng, ask, held, lambda problem: .5)
    state, taken = made.take(made.update(
        state, ask, table, SIGNAL[:5], gain))
    held = {group: held[group] for group in made.holds(state).tolist()}
    rows.append((len(ask.group), len(taken), len(made.holds(state))))
  assert rows[0][:2] == (6, 0) and rows[1][0] == rows[0][2] < 6
  assert any(row[0] == 0 and row[1] == 1 for row in rows)
  assert max(row[2] for row in rows) <= 7


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


@pytest.mark.parametrize('signal', [
    SIGNAL, np.float32([0, 3, 2.4, 1.2, .3, 0, 0])], ids=['rloo', 'pkpo'])
def test_the_signal_rule_as_a_list_of_observations(signal):
  n_init, n_cont = 2, 4
  sizes = sizes_of(3, 12, 6, 500)
  made = speed.create(sizes, n_init=n_init)
  rng, state, held = np.random.default_rng(1), made.init(), {}
  rates = np.random.default_rng(2).choice([0, 0, .1, .6, 1], 500)
  naive, going, sets = Observations(n_init, n_cont), [], set()
  for wave in range(60):
    state, ask = made.propose(state)
    if wave == 30:
      rates = np.maximum(rates, .9)  # the model has learned
    table, gain, answers = answer(rng, ask, held, rates.__getitem__)
    state, _ = made.take(made.update(state, ask, table, signal, gain))
    naive.forget()
    screens = [int(sum(values)) for _, first, values in answers if not first]
    for group, first, values in answers:
      if first:
        naive.add(int(sum(held[group][:n_init])), int(sum(values)))
    naive.learn(screens)
    best = naive.best(signal)
    assert np.flatnonzero(state.counts.accepts).tolist() == best
    np.testing.assert_allclose(state.known.prior, naive.prior, atol=1e-9)
    for c in screens:
      if c not in best:
        naive.add(c)
    going = [group for group, first, values in answers
             if not first and int(sum(values)) in best]
    assert state.accepted.group[:len(going)].tolist() == going
    assert (state.accepted.group[len(going):] == -1).all()
    held = {group: held[group] for group in made.holds(state).tolist()}
    sets.add(tuple(best))
  assert sets - {tuple(range(n_init + 1))}  # not always every outcome


@pytest.mark.parametrize('p', [.05, .2, .5, .9])
def test_the_expected_weight_of_a_prompt_is_theorem_4_1(p):
  """Of prompts with one pass rate, through the curriculum and RLOO.

  A policy of one logit has d log p(y) = y - p and dp = p (1 - p). A rejected
  group adds 0 to the mean gradient, an accepted one the mean of A_i (y_i - p).
  """
  n, waves = 16, 4
  sizes = sizes_of(1, 2500, n, 2500)
  made = speed.create(sizes, n_init=4, rule='pass_rate')
  rng, state = np.random.default_rng(int(100 * p)), made.init()
  known, total = {}, []
  for _ in range(waves + 1):
    state, ask = made.propose(state)
    right = [(rng.random(count) < p).astype(np.float32) for count in ask.count]
    for group, values in zip(ask.group.tolist(), right):
      known[group] = np.append(known.get(group, np.zeros(0)), values)
    rows = [(g, j, r) for g in ask.group.tolist() + made.holds(state).tolist()
            for j, r in enumerate(known[g])]
    group, sample, reward = map(np.array, zip(*dict.fromkeys(rows)))
    state, taken = made.take(made.update(
        state, ask, tables.table(group, sample, reward=reward), SIGNAL,
        np.where(ask.first, 1.0, np.nan)))
    if taken:
      y = np.stack([known[int(g)] for g in np.ravel(taken)])
      assert y.shape[1] == n
      a = np.asarray(advantages.rloo(y), np.float64)
      total += ((a * (y - p)).mean(1) / (p * (1 - p))).tolist()
  # Groups of the last wave are not finished; the others are all decided.
  groups = waves * sizes.prompts
  weights = np.pad(total, (0, groups - len(total)))
  error = weights.std() / groups ** .5
  wanted = float(screening.objective_slope(p, n_init=4, n_cont=12))
  assert abs(weights.mean() - wanted) < 3 * error < .1


def test_no_two_samples_of_a_run_share_noise():
  """Noise is keyed by problem and number; more prompts than problems."""
  sizes = sizes_of(2, 7, 5, 3)
  made = speed.create(sizes, n_init=2)
  rng, state, held = np.random.default_rng(0), made.init(), {}
  keys, twice = [], 0
  for _ in range(40):
    state, ask = made.propose(state)
    requests = rollout.requests_of(
        ask, problems=sizes.problems, samples=sizes.samples, budget=1)
    keys += zip(
        ask.problem[requests.prompt].tolist(), requests.sample.tolist())
    going = set(ask.problem[ask.first > 0].tolist())
    twice += bool(going & set(ask.problem[ask.first == 0].tolist()))
    table, gain, _ = answer(rng, ask, held, lambda problem: .5)
    state, _ = made.take(made.update(state, ask, table, SIGNAL[:6], gain))
    held = {group: held[group] for group in made.holds(state).tolist()}
  assert len(keys) == len(set(keys)) > 1000 and twice > 20


def begun(n_init=4, samples=8, prompts=4, **options):
  """Returns a curriculum, its state after `propose`, and its first Ask."""
  made = speed.create(
      sizes_of(2, prompts, samples, 50), n_init=n_init, **options)
  return made, *made.propose(made.init())


def screened(made, state, ask, rewards, signal=SIGNAL):
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
  for rule in speed.RULES:
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
  made = speed.create(sizes_of(4, 40, 8, 1000), n_init=4)
  rng, state, held, last = np.random.default_rng(0), made.init(), {}, []
  for wave in range(40):
    state, ask = made.propose(state)
    for group, problem, count in zip(
        ask.group.tolist(), ask.problem, ask.count):
      centre = (.2, .5, .8)[problem % 3]
      spread = .1 * (problem % 3 == 1)
      held[group] = held.get(group, []) + list(
          centre + spread * rng.uniform(-1, 1, count))
    gain = np.array([gain_of(held[group]) if first else np.nan
                     for group, first in zip(ask.group.tolist(), ask.first)])
    state, _ = made.take(made.update(
        state, ask, tables.of_rewards(rng, held), SIGNAL, gain))
    held = {group: held[group] for group in made.holds(state).tolist()}
    if wave >= 20:
      last.append(state.counts.accepts)
  assert state.known.continuous
  # .2, .5 and .8 of 4 are the outcomes 1, 2 and 3.
  share = np.mean(last, 0)
  assert share[2] == 1 and share[1] < .5 and share[3] < .5
  row = made.metrics(state)
  assert np.isnan(row['screening/samples_ratio'])
  assert 'fewer' not in made.summary(state)


def test_outcomes_are_scaled_by_the_range_of_the_rewards():
  known = outcomes.with_rewards(outcomes.init(4, 4), np.float32([0, 1, 1]))
  assert not known.continuous
  assert outcomes.of(known, np.array([0, .5, 1, np.nan]), 4).tolist() == [
      0, 2, 4, -1]
  known = outcomes.with_rewards(known, np.float32([-1, 1]))
  assert known.continuous and (known.least, known.most) == (-1, 1)
  assert outcomes.of(known, np.array([-1., 0, .5, 1]), 4).tolist() == [
      0, 2, 3, 4]


@pytest.mark.parametrize('rule', speed.RULES)
def test_prompts_without_signal_end_the_run(rule):
  """Pass rates of 0 and 1 alone; one sentence with the histogram."""
  made = speed.create(
      sizes_of(4, 6, 6, 12), n_init=2, rule=rule, patience=8)
  rng, state, held = np.random.default_rng(0), made.init(), {}
  waves = 0
  with pytest.raises(NoSignalError) as error:
    while waves < 100:
      state, ask = made.propose(state)
      table, gain, _ = answer(rng, ask, held, lambda problem: problem % 3 == 0)
      waves += 1
      state, taken = made.take(made.update(state, ask, table, SIGNAL, gain))
      held = {group: held[group] for group in made.holds(state).tolist()}
  assert waves == 8 and '\n' not in str(error.value)
  # Four epochs; a third of the 12 problems is always solved.
  assert '8 steps in a row (speed.patience)' in str(error.value)
  assert '0 of 2: 32, 1 of 2: 0, 2 of 2: 16.' in str(error.value)


def test_one_group_with_signal_starts_the_patience_again():
  made = speed.create(
      sizes_of(50, 2, 6, 400), n_init=2, rule='pass_rate', patience=6)
  rng, state, held, dry = np.random.default_rng(0), made.init(), {}, []
  for wave in range(30):
    state, ask = made.propose(state)
    table, gain, _ = answer(
        rng, ask, held, lambda problem: .5 if wave % 5 < 2 else 0)
    state = made.update(state, ask, table, SIGNAL, gain)
    held = {group: held[group] for group in made.holds(state).tolist()}
    dry.append(state.dry_waves)
  assert 0 in dry[5:] and max(dry) > 1


def test_metrics_count_what_the_run_did():
  sizes = sizes_of(4, 10, 6, 30)
  made = speed.create(sizes, n_init=2)
  rng, state, held = np.random.default_rng(0), made.init(), {}
  totals = collections.Counter()
  rates = np.linspace(0, 1, 41)
  for _ in range(50):
    state, ask = made.propose(state)
    table, gain, answers = answer(
        rng, ask, held, lambda problem: (0, .5, 1)[problem % 3])
    table = table._replace(length=(table.group % 5 + 1).astype(np.int32))
    lengths = {group: group % 5 + 1 for group in held}
    state = made.update(state, ask, table, SIGNAL, gain)
    waiting = state.finished
    state, taken = made.take(state)
    row = made.metrics(state)
    screens = [int(sum(values)) for _, first, values in answers if not first]
    going = [c for c in screens if row[f'screening/accepts/{c}']]
    done = [group for group, first, _ in answers if first]
    groups = np.ravel(taken).astype(int).tolist()
    assert row['screening/screened'] == len(screens)
    assert row['screening/accepted'] == len(going)
    assert row['screening/continued'] == len(done)
    assert row['screening/waiting'] == (waiting.group >= 0).sum() - len(groups)
    for c in range(3):
      assert row[f'screening/screened/{c}'] == screens.count(c)
      assert row[f'screening/trained/{c}'] == sum(
          round(2 * sum(held[group]) / 6) == c for group in groups)
    totals['tokens'] += sum(
        lengths[group] * len(values) for group, _, values in answers)
    totals['taken'] += sum(lengths[group] * 6 for group in groups)
    totals['samples'] += 2 * (len(screens) - len(going)) + 6 * len(done)
    assert state.counts.samples == totals['samples']
    # Samples with which whole groups of the prior have the same signal.
    totals['whole'] += 6 * np.nansum(gain) / sum(
        SIGNAL[c] * reference.binomial(6, rates, c) @ state.known.prior
        for c in range(7))
    if totals['whole']:
      assert row['screening/samples_ratio'] == pytest.approx(
          totals['samples'] / totals['whole'])
    if totals['taken']:
      assert row['screening/trained_tokens'] == pytest.approx(
          totals['taken'] / totals['tokens'])
    held = {group: held[group] for group in made.holds(state).tolist()}
  # A third each at 0, 1/2 and 1.
  assert row['screening/prior/zero'] == pytest.approx(1 / 3, abs=.1)
  assert row['screening/prior/one'] == pytest.approx(1 / 3, abs=.1)
  assert row['screening/prior/mean'] == pytest.approx(1 / 2, abs=.1)
  assert made.summary(state).startswith(
      f'SPEED screened {state.counts.groups:,} prompts')
  assert '% fewer than dynamic sampling' in made.summary(state)


@pytest.mark.parametrize('options, said', [
    (dict(n_init=8), 'speed.n_init=8 .*samples_per_prompt=8: lower'),
    (dict(n_init=9), 'speed.n_init=9 '),
    (dict(rule='pass_rate', p_low=.5, p_high=.5), 'speed.p_low=.*below'),
    (dict(capacity=4), 'speed.capacity=4 .*at least 5 ')])
def test_what_cannot_work_is_one_sentence(options, said):
  with pytest.raises(ValueError, match=said) as error:
    begun(**options)
  assert '\n' not in str(error.value)
