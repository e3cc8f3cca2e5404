"""Tests of SPEED against a naive twin with made-up rewards."""

import collections

import jax
import numpy as np
import pytest

from jaxrl_llm.curriculum import speed
from jaxrl_llm.loop import rollout
from jaxrl_llm.ops import advantages, screening
from jaxrl_llm.types import NoSignalError
from tests.helpers import screens, tables, tiny
from tests.reference import speed as reference

WAVES = 300
# B, P, n, D; n_init, capacity, max_rounds: n_init below, equal to and above the
# number of continuations; little and much room; few batches taken.
CASES = [
    ((4, 6, 6, 11), 2, None, None), ((4, 3, 6, 40), 3, 6, None),
    ((3, 7, 6, 50), 4, 9, 1), ((2, 5, 6, 4), 1, 14, 1),
    ((5, 2, 6, 3), 5, None, 1)]


@pytest.mark.parametrize('case, flights', [
    *((case, 1) for case in CASES), (CASES[0], 3), (CASES[2], 3)], ids=str)
def test_as_the_naive_twin(case, flights):
  """300 waves, of which up to `flights` are sampled at the same time."""
  sizes, n_init, capacity, most = case
  sizes = tables.sizes_of(*sizes)
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
      used['paused'] += not (ask.first == 0).any()
      flying.append(ask)
      full = len(made.holds(state)) + sum(
          (ask.first == 0).sum() for ask in flying)
      assert full <= made.capacity
      used['full'] += full == made.capacity

    ask = flying.pop(0)
    table, gain, answers = screens.answer(
        rng, ask, held, season(wave), failures=.1 * (wave % 7 == 0))
    before = wave % 50 == 0 and jax.tree.map(
        np.copy, (state, table))
    after = made.update(state, ask, table, screens.SIGNAL, gain)
    assert not before or tiny.same(before, (state, table))  # it is pure
    state, taken = made.take(after)
    twin.update(answers)
    finished.update(group for group, first, _ in answers if first)
    assert [batch.tolist() for batch in taken] == twin.take()
    assert made.holds(state).tolist() == twin.accepted + twin.finished
    assert tables.form(state) == shape

    trained += np.ravel(taken).tolist()
    held = {group: held[group] for group in made.holds(state).tolist()}

  # Every group is screened once, in their order, and its problem once an epoch;
  # none that is finished is lost, and none is trained twice.
  assert begun == list(range(len(begun))) and len(begun) > 3 * sizes.problems
  assert len(trained) == len(set(trained)) > 100
  assert set(trained) | set(twin.finished) == finished
  assert trained == sorted(trained)
  if capacity:
    assert used['full'] and used['paused']
  counts = state.counts
  assert counts.groups == len(begun) - state.in_flight
  assert counts.continued == len(finished)


def test_a_full_buffer_pauses_the_screening_and_then_empties():
  """Batches are taken one a wave; a wave may have nothing to sample."""
  sizes = tables.sizes_of(2, 6, 4, 50)
  made = speed.create(
      sizes, n_init=2, rule='pass_rate', capacity=7, max_rounds=1)
  rng, state, held, rows = np.random.default_rng(0), made.init(), {}, []
  for _ in range(8):
    state, ask = made.propose(state)
    table, gain, _ = screens.answer(rng, ask, held, lambda problem: .5)
    state, taken = made.take(made.update(
        state, ask, table, screens.SIGNAL[:5], gain))
    held = {group: held[group] for group in made.holds(state).tolist()}
    rows.append((len(ask.group), len(taken), len(made.holds(state))))
  assert rows[0][:2] == (6, 0) and rows[1][0] == rows[0][2] < 6
  assert any(row[0] == 0 and row[1] == 1 for row in rows)
  assert max(row[2] for row in rows) <= 7


@pytest.mark.parametrize('p', [.05, .2, .5, .9])
def test_the_expected_weight_of_a_prompt_is_theorem_4_1(p):
  """Of prompts with one pass rate, through the curriculum and RLOO.

  A policy of one logit has d log p(y) = y - p and dp = p (1 - p). A rejected
  group adds 0 to the mean gradient, an accepted one the mean of A_i (y_i - p).
  """
  n, waves = 16, 4
  sizes = tables.sizes_of(1, 2500, n, 2500)
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
        state, ask, tables.table(group, sample, reward=reward), screens.SIGNAL,
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
  sizes = tables.sizes_of(2, 7, 5, 3)
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
    table, gain, _ = screens.answer(rng, ask, held, lambda problem: .5)
    state, _ = made.take(
        made.update(state, ask, table, screens.SIGNAL[:6], gain))
    held = {group: held[group] for group in made.holds(state).tolist()}
  assert len(keys) == len(set(keys)) > 1000 and twice > 20


@pytest.mark.parametrize('rule', ('signal', 'pass_rate'))
def test_prompts_without_signal_end_the_run(rule):
  """Pass rates of 0 and 1 alone; one sentence with the histogram."""
  made = speed.create(
      tables.sizes_of(4, 6, 6, 12), n_init=2, rule=rule, patience=8)
  rng, state, held = np.random.default_rng(0), made.init(), {}
  waves = 0
  with pytest.raises(NoSignalError) as error:
    while waves < 100:
      state, ask = made.propose(state)
      table, gain, _ = screens.answer(
          rng, ask, held, lambda problem: problem % 3 == 0)
      waves += 1
      state, taken = made.take(
          made.update(state, ask, table, screens.SIGNAL, gain))
      held = {group: held[group] for group in made.holds(state).tolist()}
  assert waves == 8 and '\n' not in str(error.value)
  # Four epochs; a third of the 12 problems is always solved.
  assert '8 steps in a row (speed.patience)' in str(error.value)
  assert '0 of 2: 32, 1 of 2: 0, 2 of 2: 16;' in str(error.value)
  assert ('widen speed.p_low' in str(error.value)) == (rule == 'pass_rate')


def test_one_group_with_signal_starts_the_patience_again():
  made = speed.create(
      tables.sizes_of(50, 2, 6, 400), n_init=2, rule='pass_rate', patience=6)
  rng, state, held, dry = np.random.default_rng(0), made.init(), {}, 0
  longest = 0
  for wave in range(40):
    state, ask = made.propose(state)
    table, gain, _ = screens.answer(
        rng, ask, held, lambda problem: .5 if wave % 5 < 2 else 0)
    state = made.update(state, ask, table, screens.SIGNAL, gain)
    held = {group: held[group] for group in made.holds(state).tolist()}
    dry = 0 if any(value > 0 for value in gain) else dry + 1
    longest = max(longest, dry)
    assert state.dry_waves == dry
  assert longest > 2 and dry < 40


def test_metrics_count_what_the_run_did():
  sizes = tables.sizes_of(4, 10, 6, 30)
  made = speed.create(sizes, n_init=2)
  rng, state, held = np.random.default_rng(0), made.init(), {}
  totals = collections.Counter()
  rates = np.linspace(0, 1, 41)
  for _ in range(50):
    state, ask = made.propose(state)
    table, gain, answers = screens.answer(
        rng, ask, held, lambda problem: (0, .5, 1)[problem % 3])
    table = table.replace(length=(table.group % 5 + 1).astype(np.int32))
    lengths = {group: group % 5 + 1 for group in held}
    state = made.update(state, ask, table, screens.SIGNAL, gain)
    waiting = state.finished
    state, taken = made.take(state)
    row = made.metrics(state)
    right = [int(sum(values)) for _, first, values in answers if not first]
    going = [c for c in right if row[f'screening/accepts/{c}']]
    done = [group for group, first, _ in answers if first]
    groups = np.ravel(taken).astype(int).tolist()
    assert row['screening/screened'] == len(right)
    assert row['screening/accepted'] == len(going)
    assert row['screening/continued'] == len(done)
    assert row['screening/waiting'] == (waiting.group >= 0).sum() - len(groups)
    for c in range(3):
      assert row[f'screening/screened/{c}'] == right.count(c)
      assert row[f'screening/trained/{c}'] == sum(
          round(2 * sum(held[group]) / 6) == c for group in groups)
    totals['tokens'] += sum(
        lengths[group] * len(values) for group, _, values in answers)
    totals['taken'] += sum(lengths[group] * 6 for group in groups)
    totals['samples'] += 2 * (len(right) - len(going)) + 6 * len(done)
    assert state.counts.samples == totals['samples']
    # Samples with which whole groups of the prior have the same signal.
    totals['whole'] += 6 * np.nansum(gain) / sum(
        screens.SIGNAL[c] * reference.binomial(6, rates, c) @ state.known.prior
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
