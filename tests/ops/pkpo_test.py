"""Tests of PKPO's transforms against enumeration, exact sums, and theory."""

from fractions import Fraction
import functools
import itertools
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxrl_llm.ops import advantages, pkpo
from tests.helpers import devices
from tests.helpers.tolerance import rounding, typical
from tests.reference import pkpo as twin

NAMES = 'max_at_k', 's', 'sloo', 'sloo_minus_one'
TRANSFORMS = NAMES[1:]


# Single operations of a share, exp(log_misses), and of what is made of it. The
# logarithm has 6 parts, each of a log, a product and a sum.
SHARE = 16


def spare(name):
  return int(name == 'sloo')


def groups(n, rng):
  """Returns several types of rewards [G, n], all exact in float32."""
  return np.float32([
      rng.normal(size=n).astype(np.float32), rng.integers(0, 3, n) / 4,
      np.full(n, np.float32(0.7)), rng.integers(0, 2, n),
      rng.integers(-3, 4, n), np.ones(n), np.arange(n) == n // 2])


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('n', [1, 2, 3, 5, 8])
def test_equals_enumeration(name, n):
  some = groups(n, np.random.default_rng(n))
  ks = np.arange(1, n + 1 - spare(name))
  if not len(ks):
    return
  got = getattr(pkpo, name)(
      np.tile(some, (len(ks), 1, 1)), ks[:, None])
  want = [[getattr(twin, name)(np.float64(g), k) for g in some] for k in ks]
  # Sums over the group of rewards of at most 3.
  np.testing.assert_allclose(
      got, want, rtol=0, atol=rounding(
          n, SHARE, magnitude=np.abs(some).max()))


@pytest.mark.parametrize('name', NAMES)
def test_integers_are_taken_as_float32(name):
  g = np.array([3, -1, 0, 2, 2])
  got = getattr(pkpo, name)(g, 3)
  assert got.dtype == jnp.float32 and np.any(got)
  np.testing.assert_array_equal(got, getattr(pkpo, name)(np.float32(g), 3))


@pytest.mark.parametrize('name', TRANSFORMS)
@pytest.mark.parametrize('n', [16, 33])
def test_equals_the_listing(name, n):
  g = np.random.default_rng(n).normal(size=n).astype(np.float32)
  f = getattr(pkpo, name)
  for k in (2, 3, 7, n // 2, n - 1):
    expected = getattr(twin, f'matrix_{name}')(np.float64(g), k)
    # Rewards less the best are summed in sloo, each with a share of k / n.
    np.testing.assert_allclose(
        f(g, k), expected, rtol=0,
        atol=typical(n, SHARE, magnitude=k / n * np.ptp(g)))


def test_the_twins_agree():
  g = np.random.default_rng(0).normal(size=6)
  for name in TRANSFORMS:
    for k in range(2, 7 - spare(name)):
      np.testing.assert_allclose(
          getattr(twin, name)(g, k), getattr(twin, f'matrix_{name}')(g, k),
          atol=1e-12)


def test_golden():
  # g = [0, 0, 1, 1], k = 2. Of the 6 pairs only {1, 2} misses: rho = 5/6. A 0
  # has 2 of its 3 pairs with a 1, a 1 all 3: s = 2/6 and 3/6. Without a 0, all
  # pairs of [0, 1, 1] have a 1: sloo = 1/3 - 2/3. Without a 1, 2 of 3:
  # 1/2 - 2/3 * 2/3. A 1 adds something in its 2 pairs with a 0: 2/6.
  g = np.array([0, 0, 1, 1])
  third = 1 / 3
  for name, want in (
      ('max_at_k', 5 / 6), ('s', [third, third, .5, .5]),
      ('sloo', [-third, -third, 1 / 18, 1 / 18]),
      ('sloo_minus_one', [0, 0, third, third])):
    np.testing.assert_allclose(
        getattr(pkpo, name)(g, 2), want, rtol=0, atol=rounding(4, SHARE))


def test_binary_rewards():
  """Wrong samples get an exact 0, right ones C(n-c, k-1) / C(n, k)."""
  for n in (5, 16, 200):
    for c in range(0, n + 1, max(n // 16, 1)):
      g = np.random.default_rng(c).permutation(np.arange(n) < c)
      g = np.float32(g) * np.float32(0.1) + np.float32(1 / 3)
      for k in {2, 3, n // 2, n}:
        got = np.asarray(pkpo.sloo_minus_one(g, k))
        worth = float(Fraction(comb(n - c, k - 1), comb(n, k)))
        assert not np.any(got[g == g.min()]) or c == n
        step = np.float64(g.max()) - np.float64(g.min())
        # One share alone, the exp of a logarithm down to -86, whose 6 parts are
        # rounded at its size. Below 1e-37 float32 has no normal numbers.
        size = -np.log(max(worth, 1e-37))
        np.testing.assert_allclose(
            got[g > g.min()], worth * step, rtol=rounding(SHARE, 6 * size),
            atol=1e-37)
        if c in (0, n) or c > n - k + 1:
          assert not np.any(got)


def test_the_sum_of_s_is_k_rho():
  g = np.random.default_rng(0).normal(size=(12, 7, 12)).astype(np.float32)
  k = np.arange(1, 13)[:, None]
  s = pkpo.s(g, k)
  # Sums over the group: of s, in s, and in max_at_k.
  np.testing.assert_allclose(
      s.sum(-1), k * pkpo.max_at_k(g, k), rtol=0, atol=rounding(
          3 * 12, SHARE, magnitude=np.abs(s).sum(-1).max()))
  # k (k-1) is beyond 32 bits.
  large = np.random.default_rng(1).random(65_536, np.float32)
  for k in (46_342, 65_535):
    np.testing.assert_allclose(
        pkpo.s(large, k).sum(), k * pkpo.max_at_k(large, k),
        rtol=typical(3 * 65_536))


def test_shifts():
  """sloo_minus_one does not see them; s moves by k/n, sloo by -k/(n (n-1))."""
  n = 8
  # Multiples of 1/16, which stay exact when a whole number is added.
  g = np.float32(np.random.default_rng(1).integers(0, 16, (5, n)) / 16)
  for shift in (-1.0, 3.0, 4096.0):
    moved = np.float32(g + shift)
    for k in range(1, n):
      now, before = ({
          name: np.asarray(getattr(pkpo, name)(x, k)) for name in TRANSFORMS}
          for x in (moved, g))
      np.testing.assert_array_equal(
          now['sloo_minus_one'], before['sloo_minus_one'])
      for name, each in (('s', k / n), ('sloo', -k / (n * (n - 1)))):
        np.testing.assert_allclose(
            now[name], before[name] + shift * each, rtol=0,
            atol=rounding(n, SHARE, magnitude=abs(shift) + 1))


def test_k_1_is_leave_one_out_to_the_bit():
  g = np.random.default_rng(2).normal(size=(4, 9)).astype(np.float32)
  where = np.random.default_rng(3).random(g.shape) < 0.7
  for mask in (None, where):
    pkpo_1, rloo = (
        jax.jit(f, compiler_options=devices.AS_USERS)(g)
        for f in (lambda g: pkpo.advantage(g, 1, where=mask),
                  lambda g: advantages.rloo(g, where=mask)))
    np.testing.assert_array_equal(pkpo_1, rloo)


@pytest.mark.parametrize('name', NAMES)
def test_invalid_samples_leave_the_group(name):
  rng = np.random.default_rng(4)
  f = getattr(pkpo, name)
  g = rng.normal(size=(4, 6, 7)).astype(np.float32)
  where = rng.random(g.shape) < 0.7
  where[0, 0] = False
  where[0, 1] = np.arange(7) == 3
  atol = rounding(7, SHARE, magnitude=np.abs(g).max())
  for k in range(1, 8 - spare(name)):
    got = f(g, k, where=where)
    for garbage in (np.nan, np.inf, -np.inf, 1e30):
      dirty = np.where(where, g, np.float32(garbage))
      np.testing.assert_array_equal(f(dirty, k, where=where), got)
    for index in np.ndindex(4, 6):
      alone = g[index][where[index]]
      n = len(alone)
      largest = min(k, n - spare(name))  # the fallback
      value = np.asarray(got)[index]
      if name == 'max_at_k':
        want = getattr(twin, name)(alone, largest) if n else np.nan
        np.testing.assert_allclose(value, want, rtol=0, atol=atol)
        continue
      assert not np.any(value[~where[index]])
      want = getattr(twin, name)(np.float64(alone), largest) if (
          largest > 0) else np.zeros(n)
      np.testing.assert_allclose(
          value[where[index]], want, rtol=0, atol=atol)


def test_largest_k():
  where = np.array([[True] * 4, [True, False, False, False], [False] * 4])
  np.testing.assert_array_equal(pkpo.largest_k(where), [4, 1, 0])
  np.testing.assert_array_equal(
      pkpo.largest_k(where, transform='sloo'), [3, 0, -1])


@pytest.mark.long
@pytest.mark.parametrize('name', NAMES)
def test_k_is_data(name):
  """Traced, a scalar or one per group; nothing is compiled for another k."""
  traces = []

  @jax.jit
  def f(g, k):
    traces.append(None)
    return getattr(pkpo, name)(g, k)

  g = np.random.default_rng(5).normal(size=(3, 2, 6)).astype(np.float32)
  ks = range(1, 7 - spare(name))
  each = [f(g, k) for k in ks]
  close = functools.partial(
      np.testing.assert_allclose, rtol=0,
      atol=rounding(6, SHARE, magnitude=np.abs(g).max()))
  close(each[1], getattr(pkpo, name)(g, 2))
  assert len(traces) == 1
  per_group = np.array([[1, 2], [3, 4], [5, 1]])
  got = f(g, jnp.asarray(per_group))
  for index in np.ndindex(3, 2):
    np.testing.assert_array_equal(
        got[index], each[per_group[index] - 1][index])
  per_row = f(g, jnp.array([2, 3]))  # broadcasts against [3, 2]
  np.testing.assert_array_equal(per_row[1, 1], each[2][1, 1])
  close(jax.vmap(getattr(pkpo, name), (0, None))(g, 3), each[2])


def test_what_cannot_be_is_named():
  g = np.zeros((2, 4))
  for name, k, said in (
      ('s', 5, r'k=5 .* n=4 samples'), ('sloo', 4, r'k=4 .* n=4 .* n - 1 = 3'),
      ('sloo_minus_one', 0, r'k=0 .* n=4'), ('max_at_k', -1, r'k=-1 .* n=4'),
      ('s', np.array([1, 9]), r'k=9 .* n=4'),
      ('s', jnp.array([0, 9]), r'k=0 .* n=4'),
      ('s', np.ones((2, 1), int), r'k of shape \(2, 1\) .* of shape \(2,\)'),
      ('s', np.ones(3, int), r'k of shape \(3,\) .* of shape \(2, 4\)')):
    with pytest.raises(ValueError, match=said):
      getattr(pkpo, name)(g, k)
  with pytest.raises(TypeError, match='k must be integers, not float32'):
    pkpo.s(g, 2.0)
  for call in (lambda: pkpo.advantage(g, 2, transform='loo'),
               lambda: pkpo.largest_k(g > 0, transform='loo')):
    with pytest.raises(ValueError, match="transform='loo' is not known"):
      call()
  with pytest.raises(ValueError, match='n=4, c=5, k=2'):
    pkpo.pass_at_k(4, np.array([0, 5]), 2)
  for n, c, k in ((4, 1, 5), (3_000_000_000, 5, 2)):
    with pytest.raises(ValueError, match=f'n={n}, c={c}, k={k}'):
      pkpo.pass_at_k(n, c, k)
  got = jax.jit(pkpo.pass_at_k)(
      4, np.array([0, 5, 1, 1]), np.array([1, 1, 5, 0]))
  np.testing.assert_array_equal(got, [0, np.nan, np.nan, np.nan])


@pytest.mark.parametrize('n', [1, 5, 16, 1000, 1_000_000])
def test_pass_at_k(n):
  some = {0, 1, 2, 3, 16, n // 3, n // 2, n - 2, n - 1, n}
  cs = sorted(c for c in some if 0 <= c <= n)
  ks = [k for k in cs if k]
  got = np.asarray(pkpo.pass_at_k(n, np.array(cs)[:, None], np.array(ks)))
  for i, c in enumerate(cs):
    for j, k in enumerate(ks):
      # A product over the smaller of the two: C(n-c, k) / C(n, k) is
      # symmetric in c and k. Beyond 10,000 factors it is 0.
      a, b = sorted((c, k))
      misses = np.float64(0)
      if a + b <= n and a <= 10_000:
        misses = np.exp(np.log1p(-b / (n - np.arange(a))).sum())
      want = float(1 - Fraction(comb(n - c, k), comb(n, k))) if (
          n <= 1000) else 1 - misses
      if c == 1:
        want = k / n  # without the rounding of 1 - misses
      # 1 - exp(x) has no larger relative error than x.
      np.testing.assert_allclose(got[i, j], want, rtol=rounding(SHARE), atol=0)
  assert not np.any(got[0])


def test_small_integer_types_do_not_wrap():
  want = pkpo.pass_at_k(np.array([127, 200]), np.array([5, 5]), 3)
  for kind in (np.int8, np.uint8, np.int16, np.int64):
    assert pkpo.pass_at_k(kind(127), kind(5), kind(3)) == want[0]
    assert pkpo.pass_at_k(200, kind(5), kind(3)) == want[1]
    np.testing.assert_array_equal(
        pkpo.s(np.arange(300.0), kind(3)), pkpo.s(np.arange(300.0), 3))


def test_what_is_not_finite_does_not_reach_invalid_samples():
  where = np.array([False, True, True, True])
  for value in (np.inf, -np.inf, np.nan):
    for name in TRANSFORMS:
      g = np.float32([5, value, 1, 2])
      assert getattr(pkpo, name)(g, 2, where=where)[0] == 0


@pytest.mark.long
@pytest.mark.parametrize('name', NAMES)
def test_precision_at_65536(name):
  """float32 against float64 of the same numbers, for k to 1000.

  Relative to the largest value: sloo and s of centred rewards cross zero.
  """
  n = 65_536
  rng = np.random.default_rng(6)
  f = getattr(pkpo, name)
  samples = (rng.random(n), rng.normal(size=n), rng.integers(0, 2, n))
  for g in (np.float32(x) for x in samples):
    for k in (2, 10, 100, 1000, 65_000):
      got = f(g, k)
      with jax.enable_x64(True):
        want = np.asarray(getattr(pkpo, name)(np.float64(g), k))
        assert want.dtype == np.float64
      # Sums of up to n terms; those that cancel have a few roundings left.
      nothing = rounding(SHARE, magnitude=np.abs(want).max()) + 1e-37
      np.testing.assert_allclose(got, want, rtol=typical(n), atol=nothing)


def test_batch_std():
  rng = np.random.default_rng(7)
  g = rng.normal(size=(5, 6)).astype(np.float32)
  where = rng.random(g.shape) < 0.8
  plain = np.asarray(pkpo.advantage(g, 3, where=where))
  n = where.sum(-1, keepdims=True)
  # One division and one product.
  np.testing.assert_allclose(
      plain, n * pkpo.sloo_minus_one(g, 3, where=where), rtol=rounding(2))
  std = plain[where].std(ddof=1)
  got = pkpo.advantage(g, 3, where=where, batch_std=True, eps=0.1)
  # Mean and squares are sums over all; 8 operations.
  np.testing.assert_allclose(
      got, plain / (std + 0.1), rtol=rounding(2 * g.size, 8))
  equal = pkpo.advantage(np.ones((2, 4)), 2, batch_std=True)
  assert not np.any(equal)


@pytest.mark.parametrize('rate', [.05, .3, .9])
def test_the_variance_of_pass_at_k(rate):
  """Against all outcomes of n samples, in float64."""
  def exact(n, k):
    c = np.arange(n + 1)
    chance = stats.binom.pmf(c, n, rate)
    rho = np.array([twin.pass_at_k(n, int(x), k) for x in c])
    return chance @ rho ** 2 - (chance @ rho) ** 2

  for n in (1, 7):
    np.testing.assert_allclose(
        pkpo.pass_at_k_variance(n, rate, 1), exact(n, 1), rtol=1e-12)
  for k in (2, 4):
    # The next term of Hoeffding's expansion is smaller by a factor of n.
    first, second = (
        exact(n, k) / pkpo.pass_at_k_variance(n, rate, k) - 1
        for n in (400, 800))
    assert 0 < second and first / second == pytest.approx(2, rel=.15)


PARTITIONED = 's', 's_baselined', 'sloo_minus_one'


@pytest.mark.parametrize('n, k', [(4, 2), (6, 3), (6, 2)])
def test_all_partitions_together_are_all_subsets(n, k):
  g = np.random.default_rng(n + k).normal(size=n)
  orders = np.array(list(itertools.permutations(range(n))))
  back = np.argsort(orders, -1)
  # rho of the others: what `s_baselined` subtracts, on average.
  others = np.array([twin.max_at_k(np.delete(g, i), k) for i in range(n)])
  for name, want in (
      ('s', twin.s(g, k)), ('s_baselined', twin.s(g, k) - k / n * others),
      ('sloo_minus_one', twin.sloo_minus_one(g, k))):
    with jax.enable_x64(True):
      got = np.asarray(pkpo.partitioned(g[orders], k, transform=name))
    assert got.dtype == np.float64
    got = np.take_along_axis(got, back, -1).mean(0)
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_partitions_are_unbiased_and_vary_more():
  """Over all outcomes of 4 draws of 3 actions: no sampling error."""
  n, k, p = 4, 2, np.array([.5, .3, .2])
  value = np.array([0.0, .4, 1.0])
  outcomes = np.array(list(itertools.product(range(3), repeat=n)))
  chance = p[outcomes].prod(-1)
  score = np.eye(3)[outcomes] - p  # gradients of log softmax
  # The gradient of E[max of k], summed over pairs of actions.
  pairs = np.array(list(itertools.product(range(3), repeat=k)))
  exact = np.einsum(
      'o,o,od->d', p[pairs].prod(-1), value[pairs].max(-1),
      (np.eye(3)[pairs] - p).sum(1))
  variance = {}
  with jax.enable_x64(True):
    weights = {
        **{name: getattr(pkpo, name)(value[outcomes], k)
           for name in ('s', 'sloo_minus_one')},
        **{f'partitioned {name}': pkpo.partitioned(
            value[outcomes], k, transform=name) for name in PARTITIONED}}
  for name, each in weights.items():
    found = np.einsum('on,ond->od', each, score)
    np.testing.assert_allclose(chance @ found, exact, atol=1e-12)
    variance[name] = chance @ ((found - exact) ** 2).sum(-1)
  assert variance['sloo_minus_one'] < min(
      found for name, found in variance.items() if name != 'sloo_minus_one')
  # A mean over partitions has less variance than one of them.
  assert variance['s'] < variance['partitioned s']
  assert variance['partitioned s_baselined'] < variance['partitioned s']


def test_what_cannot_be_partitioned_is_named():
  for k, name, said in (
      (3, 's', 'k=3 does not split n=4 samples into 1 or more'),
      (4, 's_baselined', 'k=4 does not split n=4 samples into 2 or more'),
      (2, 'sloo', "transform='sloo' is not known")):
    with pytest.raises(ValueError, match=said):
      pkpo.partitioned(np.zeros(4), k, transform=name)


# The paper's one-dimensional problem (5.1): x ~ N(theta, 0.1), reward x^2 on
# [0, 1] and 0 elsewhere, here at theta = 1.
def reward_1d(x):
  return jnp.where((x >= 0) & (x <= 1), x ** 2, 0.0)


def slope_1d(theta, k):
  """Computes d/dtheta of the mean best of k by quadrature in float64."""
  def value(theta):
    # max of k rewards is above v where one x at least lies in (v^.5, 1).
    root = np.linspace(0, 1, 200_001)
    cdf = lambda x: _normal_cdf((x - theta) / 0.1)
    tail = 1 - (1 - (cdf(1.0) - cdf(root))) ** k
    return np.trapezoid(tail * 2 * root, root)  # dv = 2 root droot
  return (value(theta + 1e-4) - value(theta - 1e-4)) / 2e-4


def _normal_cdf(x):
  from scipy import special
  return special.ndtr(x)


@pytest.mark.long
@pytest.mark.parametrize('k', [1, 4])
def test_the_gradient_is_unbiased_and_sloo_minus_one_varies_least(k):
  draws, n, theta = 100_000, 8, 1.0

  @jax.jit
  def estimates(key):
    x = theta + 0.1 * jax.random.normal(key, (draws, n))
    score = (x - theta) / 0.1 ** 2
    weights = {
        **{name: getattr(pkpo, name)(reward_1d(x), k) for name in TRANSFORMS},
        **{f'partitioned {name}': pkpo.partitioned(
            reward_1d(x), k, transform=name) for name in PARTITIONED if k > 1}}
    return {
        name: jnp.sum(each * score, -1) for name, each in weights.items()}

  exact = slope_1d(theta, k)
  variance = {}
  with jax.enable_x64(True):
    found = estimates(jax.random.key(k))
  for name, values in found.items():
    values = np.float64(values)
    error = values.std() / draws ** 0.5
    assert abs(values.mean() - exact) < 4 * error, name
    variance[name] = values.var()
  if k > 1:
    assert variance['sloo_minus_one'] < variance['sloo'] < variance['s']
    for name in PARTITIONED:  # Fig. 4
      assert variance[f'partitioned {name}'] > variance[
          {'s_baselined': 'sloo'}.get(name, name)]
