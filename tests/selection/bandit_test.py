"""Tests of the bandit of CBS against naive twins and numbers by hand."""

import math

import jax
import numpy as np
import pytest

from jaxrl_llm.selection import bandit
from tests.helpers import tables, tiny
from tests.helpers.tolerance import EPS, rounding
from tests.reference import bandit as reference

F = len(bandit.FEATURES)
NETWORK = bandit.Network(width=16, layers=2, learning_rate=1e-2)


@pytest.fixture(autouse=True)
def _explicit_transfers():
  with jax.transfer_guard('disallow'):
    yield


def state_of(seed=0, rows=None):
  """Returns a scheduler that has seen rows."""
  state = bandit.init(NETWORK, (seed,))
  if rows is None:
    return state
  return state._replace(moments=bandit.observe(state.moments, rows))


def tree(params):
  """Returns parameters by Flax's names, in float64."""
  with jax.transfer_guard('allow'):
    return jax.tree.map(np.float64, NETWORK.tree(params))


def random_rows(rng, count):
  """Returns features of very different sizes."""
  return (rng.normal(size=(count, F)) * 10.0 ** np.arange(-3, 7)
          + np.arange(F)).astype(np.float32)


def test_features_are_those_of_table_1_in_its_order():
  table = tables.table(
      [3, 4, 4], [0, 0, 1], reward=[1, 0, .5], advantage=[.7, -2, 3],
      group_mean=[.25, .5, .75], group_std=[.1, .2, .3], length=[9, 7, 4],
      generated=[8, 2, 4],
      truncated=[True, False, True], entropy=[.6, .5, .4],
      clip_share=[.125, .25, .5], usage=[2, 0, 1], round=[5, 7, 6])
  got = bandit.features(table, np.array([2, 0]), rounds=7, response=8)
  assert got.dtype == np.float32
  np.testing.assert_array_equal(got, np.float32([
      # reward A mean std |o|/L truncated e clip usage age
      [.5, 3, .75, .3, .5, 1, .4, .5, 1, 1],
      [1, .7, .25, .1, 1, 1, .6, .125, 2, 2]]))
  assert bandit.features(
      table, np.zeros(0, int), rounds=7, response=8).shape == (0, F)


def test_moments_are_those_of_all_rows_together():
  rng = np.random.default_rng(0)
  for _ in range(20):
    rows = random_rows(rng, 300)
    rows[:, 4] = 7.25  # always the same
    moments = state_of().moments
    for part in np.split(rows, np.sort(rng.integers(0, 301, 4))):
      moments = bandit.observe(moments, part)
    exact = rows.astype(np.float64)
    assert moments.count == 300
    np.testing.assert_allclose(moments.mean, exact.mean(0), rtol=1e-12)
    np.testing.assert_allclose(
        moments.squares, 300 * exact.var(0), rtol=1e-12, atol=1e-12)
    got = bandit.normalised(moments, rows)
    assert got.dtype == np.float32 and not got[:, 4].any()
    others = np.arange(F) != 4
    want = ((exact - exact.mean(0)) / np.where(others, exact.std(0), 1))
    np.testing.assert_allclose(
        got[:, others], want[:, others], rtol=rounding(2), atol=EPS)


def test_an_outlier_is_clipped_and_nothing_seen_is_no_nan():
  rows = np.zeros((400, F), np.float32)
  rows[0] = 1e30
  rows[1] = -1e30
  got = bandit.normalised(bandit.observe(state_of().moments, rows), rows)
  assert got[:2].tolist() == [[10] * F, [-10] * F]
  assert not bandit.normalised(state_of().moments, rows[2:]).any()


def test_scores_are_the_mlp_and_padding_changes_nothing():
  rng = np.random.default_rng(1)
  rows = random_rows(rng, 50)
  state = state_of(3, rows)
  want, _ = reference.forward(
      tree(state.params), np.float64(bandit.normalised(state.moments, rows)))
  got = bandit.scores(NETWORK, state, rows)
  assert got.shape == (50,) and got.dtype == np.float32
  # Three products, of 10, 16 and 16 terms.
  error = rounding(F, 16, 16, magnitude=4 * np.abs(want).max())
  np.testing.assert_allclose(got, want, rtol=0, atol=error)
  padded = bandit.scores(NETWORK, state, rows, size=64)
  np.testing.assert_allclose(padded, want, rtol=0, atol=error)
  assert bandit.scores(NETWORK, state, rows[:0], size=64).shape == (0,)


def test_training_is_a_step_of_adam_on_the_mean_squared_error():
  """The first step of Adam is lr g / (|g| + 1e-8 * ...): it checks the signs.

  The moments after it are (1 - b1) g and (1 - b2) g^2, which check the sizes.
  """
  rng = np.random.default_rng(2)
  rows = random_rows(rng, 40)
  targets = rng.normal(size=40)
  state = state_of(4, rows)
  x = np.float64(bandit.normalised(state.moments, rows))
  before = tree(state.params)
  loss, grads = reference.gradient(before, x, targets)
  after, got = bandit.train(NETWORK, state, rows, targets, size=64)
  # Products of 10, 16 and 16 terms, there and back, and a sum of 40.
  relative = rounding(2 * (F + 32), 40)
  assert got == pytest.approx(loss, rel=8 * relative)
  adam = after.optimizer[0]
  assert int(adam.count) == 1
  scale = max(np.abs(g).max() for g in jax.tree.leaves(grads))
  for g, moment, new, old in zip(*map(
      jax.tree.leaves, (grads, tree(adam.mu), tree(after.params), before))):
    np.testing.assert_allclose(
        moment, .1 * g, rtol=0, atol=.1 * 8 * relative * scale)
    far = np.abs(g) > 1e-3 * scale
    np.testing.assert_allclose(
        (new - old)[far], -NETWORK.learning_rate * np.sign(g[far]), rtol=1e-2)
  assert after.moments is state.moments


def test_padding_does_not_train_and_training_lowers_the_loss():
  rng = np.random.default_rng(3)
  rows = random_rows(rng, 30)
  targets = np.abs(rng.normal(size=30))
  state = state_of(5, rows)
  a, loss = bandit.train(NETWORK, state, rows, targets)
  b, again = bandit.train(NETWORK, state, rows, targets, size=64)
  # The same sums in another order, amplified by Adam's first step.
  assert loss == pytest.approx(again, rel=rounding(40))
  x, y = a.optimizer[0].mu, b.optimizer[0].mu
  np.testing.assert_allclose(
      x, y, rtol=0, atol=rounding(64, magnitude=10 * np.abs(x).max()))
  for _ in range(60):
    state, last = bandit.train(NETWORK, state, rows, targets, size=64)
  assert last < loss / 4


@pytest.mark.parametrize('targets', [[], [np.nan], [np.inf], [1e30]])
def test_what_is_not_finite_changes_nothing(targets):
  rows = np.ones((len(targets), F), np.float32)
  state = state_of(6, random_rows(np.random.default_rng(0), 9))
  after, loss = bandit.train(NETWORK, state, rows, np.array(targets), size=64)
  assert tiny.same(after, state) and not np.isfinite(loss)


def test_the_first_state_depends_on_the_seed_alone():
  assert tiny.same(state_of(1), state_of(1))
  assert not tiny.same(state_of(1).params, state_of(2).params)
  for leaf in jax.tree.leaves(state_of(1)):
    assert isinstance(leaf, np.ndarray | np.generic | int)
  # ReLU layers have the scale of He, and biases begin at 0.
  network = bandit.Network(width=4096, layers=1)
  wide = bandit.init(network, (0,))
  with jax.transfer_guard('allow'):
    first = network.tree(wide.params)['params']['Dense_0']
    assert first['kernel'].std() == pytest.approx((2 / F) ** .5, rel=.05)
    assert not first['bias'].any()


@pytest.mark.parametrize('number, warmup, least, want', [
    # Up to T_w it is 1; then eps_0 - (t - 1) .008, but at least eps_min.
    (1, 50, .2, 1), (50, 50, .2, 1), (51, 50, .2, .6), (52, 50, .2, .592),
    (101, 50, .2, .2), (500, 50, .2, .2), (125, 50, .005, .008),
    (126, 50, .005, .005), (1, 0, .2, 1), (2, 0, .2, .992)])
def test_epsilon_is_equation_9(number, warmup, least, want):
  assert bandit.epsilon(
      number, warmup=warmup, start=1.0, decay=.008, least=least
  ) == pytest.approx(want, rel=1e-12)


def test_epsilon_begins_where_it_is_told():
  assert bandit.epsilon(1, warmup=0, start=.4, decay=.1, least=0.0) == .4
  assert bandit.epsilon(
      4, warmup=2, start=.4, decay=.1, least=0.0) == pytest.approx(.1)


@pytest.mark.parametrize('epsilon', [0.0, .1, .5, .9, 1.0])
def test_picks_are_those_of_one_at_a_time(epsilon):
  rng = np.random.default_rng(int(10 * epsilon))
  for case in range(150):
    m = int(rng.integers(1, 40))
    k = m if case % 5 == 0 else int(rng.integers(0, m + 1))
    # A few values make ties.
    scores = rng.integers(0, 4 if case % 2 else 10 ** 6, m).astype(np.float32)
    age = rng.integers(0, 3, m).astype(np.float32)
    newest, order = rng.random(k) < epsilon, rng.permutation(m)
    got = bandit.pick(scores, age, newest, order)
    assert got.dtype == np.int64
    assert got.tolist() == reference.pick(scores, age, newest, order)
    assert len({*got.tolist()}) == k
    if epsilon == 1:
      assert sorted(age[got]) == sorted(age)[:k]
    if epsilon == 0:
      assert (scores[got] == np.sort(scores)[::-1][:k]).all()


def test_ties_of_age_are_broken_evenly():
  rng, counts = np.random.default_rng(0), np.zeros(6)
  for _ in range(3000):
    counts[bandit.pick(
        np.zeros(6), np.array([1, 0, 0, 0, 0, 2]), np.ones(2, bool),
        rng.permutation(6))] += 1
  assert not counts[[0, 5]].any()
  # Each of the four is picked with probability 1/2: five standard deviations.
  assert np.abs(counts[1:5] - 1500).max() < 5 * math.sqrt(3000 / 4)


def test_rewards_of_rounds_by_hand():
  """alpha .9, w_e 100, e_min .1.

  Round 1: dV = .1, mu = .09, sigma = .9 * .01^2 = 9e-5,
    z = .01 / sqrt(9e-5) = 1.0541, sigmoid = .74156;
    E goes from .05, not above e_min, to .3: no penalty.
  Round 2: dV = -.2, mu = .1 * .09 - .18 = -.171, distance -.029,
    sigma = 9e-6 + .9 * 8.41e-4 = 7.659e-4, z = -.029 / .0276749 = -1.04788,
    sigmoid = .25963; E .3 -> .31: penalty 100 * .01 = 1.
  Round 3: dV = .05, mu = -.0171 + .045 = .0279, distance .0221,
    sigma = 7.659e-5 + .9 * 4.8841e-4 = 5.16159e-4, z = .0221 / .0227191
    = .97275, sigmoid = .72566; E .31 -> .25: a bonus of 6.
  """
  averages, options = bandit.Gain(), dict(
      alpha=.9, entropy_weight=100.0, entropy_min=.1)
  for value, entropy, mean, variance, gain, penalty in (
      ((.4, .5), (.05, .3), .09, 9e-5, .74156, 0),
      ((.5, .3), (.3, .31), -.171, 7.659e-4, .25963, 1),
      ((.3, .35), (.31, .25), .0279, 5.16159e-4, .72566, -6)):
    averages, got = bandit.reward(averages, value, entropy, **options)
    assert averages == pytest.approx((mean, variance), rel=1e-9)
    assert got == pytest.approx(
        (gain, penalty, gain - penalty), rel=2e-5, abs=1e-9)
  # Exactly at e_min there is no penalty.
  _, got = bandit.reward(averages, (0, 0), (.1, .9), **options)
  assert got.entropy_penalty == 0


def test_ablations_leave_out_their_part():
  options = dict(alpha=.9, entropy_weight=100.0, entropy_min=.1)
  args = bandit.Gain(), (.4, .5), (.2, .23)
  raw = bandit.reward(*args, **options, ablate='raw_gain')[1]
  assert raw == pytest.approx((.1, 3, -2.9))
  none = bandit.reward(*args, **options, ablate='no_entropy')[1]
  assert none == pytest.approx((.74156, 0, .74156), rel=2e-5)
  assert {*bandit.ABLATIONS} == {'none', 'raw_gain', 'no_entropy'}


def test_the_squeezed_gain_is_bounded_and_a_constant_reward_gives_no_nan():
  rng, averages = np.random.default_rng(0), bandit.Gain()
  options = dict(alpha=.9, entropy_weight=100.0, entropy_min=.1)
  low = 1 / (1 + math.exp(1 / math.sqrt(.9)))  # .2585
  found = []
  for _ in range(500):
    change = rng.normal() * 10.0 ** rng.integers(-6, 3)
    averages, got = bandit.reward(averages, (0, change), (0, 0), **options)
    found.append(got.gain)
  assert low - 1e-9 <= min(found) < .27 and .73 < max(found) <= 1 - low + 1e-9
  for _ in range(1000):
    averages, got = bandit.reward(averages, (.7, .7), (.5, .5), **options)
    assert np.isfinite(got).all() and np.isfinite(averages).all()
  assert got == (.5, 0, .5)


def test_correlations_are_pearson_s(recwarn):
  rng = np.random.default_rng(0)
  rows = random_rows(rng, 200)
  rows[:, 2] = .1  # constant
  scores = (rows[:, 0] * 1e3 + rng.normal(size=200)).astype(np.float32)
  got = bandit.correlations(scores, rows)
  assert tuple(got) == bandit.FEATURES and math.isnan(got['group_mean'])
  for i, name in enumerate(bandit.FEATURES):
    if i != 2:
      x, y = (np.float64(v) - np.float64(v).mean()
              for v in (scores, rows[:, i]))
      assert got[name] == pytest.approx(
          (x * y).sum() / math.sqrt((x ** 2).sum() * (y ** 2).sum()), abs=1e-9)
  assert .5 < got['reward'] < .9
  for scores, some in ((np.ones(200), rows), (np.ones(0), rows[:0])):
    assert np.isnan([*bandit.correlations(scores, some).values()]).all()
  assert not recwarn.list


def utility(rows):
  """Returns the utility of arms: two features, and their signs."""
  return np.abs(rows[:, 1]) + .5 * np.maximum(rows[:, 6], 0)


@pytest.mark.parametrize('seed', range(5))
def test_greedy_picks_are_near_the_oracle_s(seed):
  """200 rounds of 64 arms and 8 picks, trained with each arm's own reward."""
  network = bandit.Network(width=64, layers=2, learning_rate=1e-2)
  rng = np.random.default_rng(seed)
  state = bandit.init(network, (seed,))
  ours, best, chance = [], [], []
  for number in range(1, 261):
    rows = rng.normal(size=(64, F)).astype(np.float32)
    state = state._replace(moments=bandit.observe(state.moments, rows))
    scores = bandit.scores(network, state, rows)
    epsilon = 0.0 if number > 200 else bandit.epsilon(
        number, warmup=20, start=1.0, decay=.008, least=.2)
    picked = bandit.pick(
        scores, np.zeros(64), rng.random(8) < epsilon, rng.permutation(64))
    values = utility(rows)
    if number <= 200:
      rewards = values[picked] + .3 * rng.normal(size=8)
      state, _ = bandit.train(network, state, rows[picked], rewards)
    else:
      ours.append(values[picked].mean())
      best.append(np.sort(values)[-8:].mean())
      chance.append(values[rng.permutation(64)[:8]].mean())
  assert np.mean(ours) > .9 * np.mean(best)
  error = np.std(np.subtract(ours, chance)) / math.sqrt(len(ours))
  assert np.mean(ours) - np.mean(chance) > 3 * error


def learned_order(seed, share_reward):
  """Trains the scheduler on made-up rounds; says what its scores order by.

  Training on an arm raises V by |A| (1 + x / 2), where x is the feature of the
  length. Each of 200 rounds picks 128 of 256 arms.

  Args:
    seed: of the rounds.
    share_reward: whether all arms of a round have its reward, as in CBS; else
      each has its own, of about the same mean.

  Returns:
    Correlation of scores of new arms with |A|, and with |A| x where what a
    line in |A| explains is taken from both.
  """
  network = bandit.Network(learning_rate=3e-3)
  rng, averages, value = np.random.default_rng(seed), bandit.Gain(), .3
  arms = lambda count: rng.normal(size=(count, F)).astype(np.float32)
  weight = lambda rows: np.abs(rows[:, bandit.FEATURES.index('advantage')])
  length = lambda rows: rows[:, bandit.FEATURES.index('length')]
  state = bandit.init(network, (seed,))
  for number in range(1, 201):
    rows = arms(256)
    state = state._replace(moments=bandit.observe(state.moments, rows))
    epsilon = bandit.epsilon(number, warmup=20, start=1.0, decay=.01, least=.2)
    picked = rows[bandit.pick(
        bandit.scores(network, state, rows), np.zeros(256),
        rng.random(128) < epsilon, rng.permutation(256))]
    own = 1 + length(picked) / 2
    before = value
    value += .01 * (weight(picked) * own).mean() + .0005 * rng.normal()
    averages, reward = bandit.reward(
        averages, (before, value), (.5, .5), alpha=.9, entropy_weight=100.0,
        entropy_min=.1)
    state, _ = bandit.train(network, state, picked, weight(picked) * (
        reward.total if share_reward else own / 2))
  rows = arms(2000)
  scores, size = bandit.scores(network, state, rows), weight(rows)
  line = np.stack([np.ones_like(size), size], 1)
  rest = lambda y: y - line @ np.linalg.lstsq(line, y, rcond=None)[0]
  return (np.corrcoef(scores, size)[0, 1],
          np.corrcoef(rest(scores), rest(size * length(rows)))[0, 1])


@pytest.mark.parametrize('seed', range(2))
def test_scores_order_by_the_advantage_alone(seed):
  """Shows what docs/cbs.md derives: a reward of a round hides the rest."""
  by_size, by_length = learned_order(seed, share_reward=True)
  assert by_size > .8 and abs(by_length) < .2
  # The same scheduler learns it from a reward of each row.
  assert learned_order(seed, share_reward=False)[1] > .7
