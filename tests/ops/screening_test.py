"""Tests of the values of screening outcomes, by enumeration and simulation."""

import math

import jax
import numpy as np
import pytest

from jaxrl_llm.ops import advantages, pkpo, screening
from tests.reference import speed as reference

EPS = np.finfo(np.float64).eps


def signal_of(k, n):
  """Signal of PKPO (RLOO for k=1), from the formulas of the two."""
  if k == 1:
    return np.array([2 * c * (n - c) / (n - 1) for c in range(n + 1)])
  return np.array([
      n * c * math.comb(n - c, k - 1) / math.comb(n, k) for c in range(n + 1)])


@pytest.mark.parametrize('k, n', [(1, 4), (1, 16), (2, 5), (8, 16), (16, 16)])
def test_signal_is_the_sum_of_the_advantages(k, n):
  found = jax.jit(lambda: screening.signal_table(
      lambda rewards: pkpo.advantage(rewards, k), n))()
  # n additions of values that are rounded a few times each.
  np.testing.assert_allclose(
      found, signal_of(k, n), rtol=4 * n * np.finfo(np.float32).eps,
      atol=1e-6)
  if k == 1:
    rloo = screening.signal_table(advantages.rloo, n)
    np.testing.assert_allclose(rloo, found, rtol=1e-5, atol=1e-6)


def test_binomial():
  rates = np.array([0, .1, .5, .999, 1])
  found = screening.binomial(6, rates)
  for row, p in zip(found, rates):
    np.testing.assert_allclose(
        row, [reference.binomial(6, p, c) for c in range(7)], rtol=20 * EPS)
  assert screening.binomial(0, rates).tolist() == [[1]] * 5


@pytest.mark.parametrize('n_init, n_cont', [(4, 12), (1, 3), (3, 1), (5, 5)])
def test_values_are_expectations_over_the_prior(n_init, n_cont):
  rng = np.random.default_rng(n_init)
  prior, signal = rng.dirichlet(np.ones(11)), rng.random(n_init + n_cont + 1)
  values, probability = screening.outcome_values(prior, signal, n_init)
  for c in range(n_init + 1):
    joint = [w * reference.binomial(n_init, p, c)
             for w, p in zip(prior, np.linspace(0, 1, 11))]
    value = sum(
        weight * reference.binomial(n_cont, p, d) * signal[c + d]
        for weight, p in zip(joint, np.linspace(0, 1, 11))
        for d in range(n_cont + 1)) / sum(joint)
    assert probability[c] == pytest.approx(sum(joint), rel=1e-12)
    assert values[c] == pytest.approx(value, rel=1e-12)


def test_an_outcome_that_cannot_be_has_no_value():
  values, probability = screening.outcome_values(
      np.eye(5)[0], signal_of(1, 6), 3)  # pass rate 0
  assert probability.tolist() == [1, 0, 0, 0]
  assert values.tolist() == [0, 0, 0, 0]
  assert not screening.best_outcomes(values, probability, 3).any()


@pytest.mark.parametrize('n_init, n_cont', [(4, 12), (8, 8), (1, 3), (6, 2)])
def test_best_outcomes_as_all_sets(n_init, n_cont):
  rng = np.random.default_rng(n_init)
  sizes = set()
  for _ in range(60):
    prior = rng.dirichlet(np.full(41, rng.choice([.03, .3, 3])))
    if rng.random() < .5:
      prior = np.r_[prior[0] + rng.random() * 2, prior[1:]]
      prior /= prior.sum()
    signal = signal_of(rng.integers(1, n_init + n_cont + 1), n_init + n_cont)
    values, probability = screening.outcome_values(prior, signal, n_init)
    found = screening.best_outcomes(values, probability, n_cont)
    chosen = [*np.flatnonzero(found)]
    rates = [reference.rate_of_set(x, values, probability, n_cont)
             for x in reference.subsets(n_init + 1)]
    least = min(
        (x for x, rate in zip(reference.subsets(n_init + 1), rates)
         if rate > (1 - 1e-12) * max(rates)), key=len)
    assert chosen == least
    mine = reference.rate_of_set(chosen, values, probability, n_cont)
    assert mine == pytest.approx(max(rates), rel=1e-12)
    assert mine == pytest.approx(screening.signal_per_sample(
        values, probability, n_cont, found), rel=1e-12)
    sizes.add(len(chosen))
  assert len(sizes) > 1


def interior(zero, one):
  """A prior: masses at 0 and 1, the rest uniform over 39 points between."""
  prior = np.full(41, (1 - zero - one) / 39)
  prior[[0, -1]] = zero, one
  return prior


# Masses at 0 and 1, n_init, n_cont, k: best outcomes, and the gain over
# sampling all n for every prompt, of the best outcomes and of 0 < rate < 1.
GOLDEN = [
    (0, 0, 4, 12, 4, None, 1.25, 1.01), (0, 0, 4, 12, 8, {0, 1}, 1.60, .72),
    (.33, .1, 4, 12, 8, {0, 1}, 1.31, 1.00),
    (.33, .1, 8, 8, 8, {1, 2, 3}, 1.25, 1.07),
    (1 / 3, .1, 4, 12, 1, {1, 2, 3}, None, None),
    (.6, 0, 4, 12, 1, {1, 2, 3, 4}, None, None)]


def test_golden_outcomes_at_k_1():
  """With 60% at 0, the best outcomes have 2% more than the paper's."""
  signal, paper = signal_of(1, 16), np.array([0, 1, 1, 1, 0], bool)
  for prior, chosen, gain in (
      (interior(.6, 0), [1, 2, 3, 4], 1.02),
      (weights(1 / 3, .25, .6, .6), [1, 2, 3], 1.0)):
    values, probability = screening.outcome_values(prior, signal, 4)
    accepted = screening.best_outcomes(values, probability, 12)
    assert np.flatnonzero(accepted).tolist() == chosen
    ours, theirs = (screening.signal_per_sample(
        values, probability, 12, x) for x in (accepted, paper))
    assert abs(ours / theirs - gain) < .006


@pytest.mark.parametrize(
    'zero, one, n_init, n_cont, k, chosen, best, paper', GOLDEN)
def test_golden_gains(zero, one, n_init, n_cont, k, chosen, best, paper):
  n, signal = n_init + n_cont, signal_of(k, n_init + n_cont)
  values, probability = screening.outcome_values(
      interior(zero, one), signal, n_init)
  accepted = screening.best_outcomes(values, probability, n_cont)
  if chosen is not None:
    assert set(np.flatnonzero(accepted)) == chosen
  between = np.arange(n_init + 1)
  between = (between > 0) & (between < n_init)
  all_of_them = (probability @ values) / n
  for wanted, outcomes in ((best, accepted), (paper, between)):
    if wanted is not None:
      gain = screening.signal_per_sample(
          values, probability, n_cont, outcomes) / all_of_them
      assert abs(gain - wanted) < .006


def test_golden_values_under_beta_1_1():
  """A fixed prior ranks screens without a right sample first."""
  fine = np.full(4001, 1.0)
  fine[[0, -1]] = .5  # trapezoid
  signal = signal_of(8, 16)
  values, _ = screening.outcome_values(fine / fine.sum(), signal, 4)
  np.testing.assert_allclose(
      values / signal.max(), [.51, .40, .11, .02, .00], atol=.006)


def test_golden_slope_of_the_objective():
  np.testing.assert_allclose(
      screening.objective_slope(
          np.array([.05, .2, .5, .9]), n_init=4, n_cont=12),
      [.380518, .669840, .881250, .493090], atol=5e-7)


def test_a_prior_update_is_em():
  """Against EM written out; the likelihood of the counts never falls."""
  rng = np.random.default_rng(0)
  rates, prior = np.linspace(0, 1, 41), screening.uniform_prior()
  screened, continued = rng.poisson(9, 3) * 1., rng.poisson(2, (3, 4)) * 1.
  found = screening.prior_update(prior, screened, continued, steps=1)
  groups = [(count, [reference.binomial(2, p, c) for p in rates])
            for c, count in enumerate(screened)]
  groups += [
      (continued[c, d],
       [reference.binomial(2, p, c) * reference.binomial(3, p, d)
        for p in rates]) for c in range(3) for d in range(4)]
  wanted = sum(
      count * prior * np.array(likelihood) / np.dot(prior, likelihood)
      for count, likelihood in groups) / sum(count for count, _ in groups)
  np.testing.assert_allclose(found, wanted, rtol=1e-12)

  def fit(weights):
    return sum(count * np.log(np.dot(weights, likelihood))
               for count, likelihood in groups if count)

  fits = [fit(screening.prior_update(prior, screened, continued, steps=steps))
          for steps in (0, 1, 5, 50)]
  assert fits == sorted(fits) and fits[0] < fits[-1]


def test_a_prior_without_observations_stays():
  prior = np.random.default_rng(0).dirichlet(np.ones(41))
  none = screening.prior_update(prior, np.zeros(5), np.zeros((5, 13)))
  np.testing.assert_array_equal(none, prior)


def test_a_weight_that_has_vanished_comes_back():
  """Prompts that were all impossible become solvable as the model learns."""
  impossible = screening.prior_update(
      screening.uniform_prior(), np.array([10000., 0, 0, 0, 0]),
      np.zeros((5, 13)), steps=5000)
  assert impossible[0] > .999
  continued = np.zeros((5, 13))
  continued[2, 6] = 50
  found = screening.prior_update(impossible, np.zeros(5), continued)
  assert found[15:26].sum() > .9


# Mixtures of pass rates: masses at 0 and 1, and a beta distribution.
RNG = np.random.default_rng(0)
MIXTURES = [
    (RNG.uniform(0, .6), RNG.uniform(0, .35), *RNG.uniform(.3, 3, 2))
    for _ in range(20)]


def test_the_learned_prior_finds_nearly_the_best_outcomes():
  """5,000 screens of each of 20 mixtures, 64 a wave: within 3%."""
  n_init, n_cont = 4, 12
  for seed, mixture in enumerate(MIXTURES):
    k = (1, 4, 8)[seed % 3]
    signal = signal_of(k, n_init + n_cont)
    rng = np.random.default_rng((seed, k))
    prior = screening.uniform_prior()
    screened, continued = np.zeros(5), np.zeros((5, 13))
    coming = np.zeros((2, 0), int)
    for _ in range(5000 // 64 + 1):
      rate = draw(rng, 64, *mixture)
      c, d = rng.binomial(n_init, rate), rng.binomial(n_cont, rate)
      screened, continued = .98 * screened, .98 * continued
      np.add.at(continued, tuple(coming), 1)
      prior = screening.prior_update(
          prior, screened + np.bincount(c, minlength=5), continued)
      accepted = screening.best_outcomes(
          *screening.outcome_values(prior, signal, n_init), n_cont)
      screened = screened + np.bincount(c[~accepted[c]], minlength=5)
      coming = np.stack([c, d])[:, accepted[c]]

    true = screening.outcome_values(weights(*mixture), signal, n_init)
    best = screening.best_outcomes(*true, n_cont)
    mine, most = (
        screening.signal_per_sample(*true, n_cont, chosen)
        for chosen in (accepted, best))
    assert mine > .97 * most, (k, mixture, accepted, best)


def draw(rng, size, zero, one, a, b):
  """Draws pass rates of a mixture."""
  which = rng.random(size)
  return np.where(
      which < zero, 0., np.where(
          which > 1 - one, 1., rng.beta(a, b, size)))


def weights(zero, one, a, b):
  """Returns the mixture on 4001 pass rates, the beta part by its density."""
  rates = np.linspace(0, 1, 4001)
  inner = (rates[1:-1] ** (a - 1) * (1 - rates[1:-1]) ** (b - 1))
  return np.r_[zero, inner / inner.sum() * (1 - zero - one), one]
