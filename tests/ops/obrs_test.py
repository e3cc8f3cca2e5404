"""Tests of OBRS against NumPy in float64, by enumeration and by simulation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from jaxrl_llm.ops import importance, obrs
from tests.helpers.tolerance import FUNCTION, rounding
from tests.reference import policy_losses as reference

LAMS = np.float32([0.8, 1.0, 1.2])
# Target and whether the surrogate has a ratio.
CASES = [(target, clipped) for target in obrs.TARGETS
         for clipped in (True, False)]
# Correction in place of min(x, c1), and its limits.
LIMITS = {None: {}, 'identity': {}, 'tis': dict(cap=2.0),
          'icepop': dict(low=0.5, cap=2.0)}

acceptance, accept_mask, normalizer, normalizer_topk, calibration = map(
    jax.jit, (obrs.acceptance, obrs.accept_mask, obrs.normalizer,
              obrs.normalizer_topk, obrs.calibration))


@functools.partial(
    jax.jit, static_argnames=('target', 'clipped', 'correction'))
def weights(*args, clipped=True, c2=jnp.inf, **options):
  *logprobs, z, mask = args
  return obrs.weights(
      obrs.Logprobs(*logprobs), z, mask, c2=c2 if clipped else None, **options)


# All rates at once: [R] rates, [..., V] log-probs -> [R, ...].
log_lam_for_rate = jax.jit(jax.vmap(obrs.log_lam_for_rate, (None, None, 0)))


def log_probs(rng, *shape, scale=1.0):
  """Draws distributions over the last axis."""
  return np.float32(
      special.log_softmax(scale * rng.normal(size=shape), axis=-1))


def extreme(gap, size=8):
  """Returns log p and log q of [size] tokens with log-ratios of +-gap."""
  p = special.log_softmax(np.repeat([0.0, -gap], size // 2))
  return np.float32(p), np.float32(p[::-1])


def error(*logs, axis=None):
  """Bounds the relative error of the exp of a sum of logs.

  Roundings of the logs and of the partial sums are absolute errors of the
  exponent.
  """
  total = sum(np.max(np.abs(x), axis=axis) for x in logs)
  return rounding(len(logs) + FUNCTION, magnitude=total) + rounding(FUNCTION)


def obrs_rule(p, q, lam):
  """Computes acceptance [..., V] and Z [...] in float64."""
  a = np.exp(np.minimum(0, np.float64(p) - q - np.log(np.float64(lam))))
  return a, np.sum(np.exp(np.float64(q)) * a, axis=-1)


@functools.cache
def world():
  """Returns new, ref, behaviour [V]; 2e6 tokens of the latter; f [3, V]."""
  rng = np.random.default_rng(0)
  new, ref, behaviour = log_probs(rng, 3, 8, scale=0.8)
  q = np.exp(np.float64(behaviour))
  tokens = rng.choice(8, 2_000_000, p=q / q.sum())
  return new, ref, behaviour, tokens, rng.normal(size=(3, 8))


def assert_mean(samples, mean):
  """Asserts that means over the last axis are within 4 standard errors."""
  bound = 4 * samples.std(axis=-1) / samples.shape[-1] ** 0.5
  np.testing.assert_array_less(np.abs(samples.mean(axis=-1) - mean), bound)


# lam: acceptance of the first three tokens, Z and p / q', by hand.
GOLDEN = {1 / 2: ([1, 1, 2 / 3], 7 / 8, [7 / 2, 7 / 16, 7 / 16]),
          1.0: ([1, 1 / 2, 1 / 3], 1 / 2, [2, 1 / 2, 1 / 2]),
          2.0: ([1, 1 / 4, 1 / 6], 5 / 16, [5 / 4, 5 / 8, 5 / 8])}


@pytest.mark.parametrize('lam', GOLDEN)
def test_golden(lam):
  """The last token has no behaviour probability, and counts 0 in Z."""
  close = functools.partial(
      np.testing.assert_allclose, rtol=8 * error(np.log(16), np.log(2)))
  p = np.log(np.float32([1 / 2, 1 / 4, 1 / 8, 1 / 8]))
  q = np.float32([*np.log([1 / 8, 1 / 2, 3 / 8]), -np.inf])
  ref = np.log(np.float32([1 / 4, 3 / 8, 1 / 8, 1 / 4]))
  a, z, weight = GOLDEN[lam]
  close(normalizer(p, q, lam=lam), z)
  p, q, ref = p[:3], q[:3], ref[:3]
  close(acceptance(p, q, lam=lam), a)
  close(np.exp(log_lam_for_rate(p, q, np.float32([z]))), [lam])
  args = [x[None] for x in (p, ref, q, np.full(3, z), np.ones(3, bool))]
  close(weights(*args, lam=lam, clipped=False).weight[0], weight)
  got = weights(*args, lam=lam, c1=1.5, c2=1.0)  # p_ref / p: 1/2, 3/2, 1
  close(got.weight[0], np.minimum(weight, 1.5) * [0.5, 1.0, 1.0])
  np.testing.assert_array_equal(got.at_c1, [[lam < 2, False, False]])
  np.testing.assert_array_equal(got.at_c2, [[False, True, False]])


@pytest.mark.parametrize('lam', LAMS)
def test_kept_tokens_have_the_distribution(lam):
  p, _, q, tokens, _ = world()
  kept = accept_mask(
      jax.random.key(1), acceptance(p[tokens], q[tokens], lam=lam))
  counts = np.bincount(tokens[kept][:1_000_000], minlength=len(p))
  expected = np.minimum(*np.exp(np.float64([q, p - np.log(lam)])))
  expected *= 1_000_000 / expected.sum()
  # Fewer kept tokens raise. In 1 of 10,000 seeds the p-value is lower.
  assert stats.chisquare(counts, expected).pvalue > 1e-4
  assert_mean(np.asarray(kept), normalizer(p, q, lam=lam))


def test_certain_tokens_are_kept_and_impossible_ones_are_not(monkeypatch):
  ones = np.ones(100_000, np.float32)
  assert accept_mask(jax.random.key(0), ones).all()
  # Draws are below 1, but one of 2^23 is 0.
  monkeypatch.setattr(jax.random, 'uniform', lambda key, shape: np.zeros(shape))
  assert not obrs.accept_mask(jax.random.key(0), 0 * ones).any()


def divergence(p, q, a):
  """Computes KL(p || q a / Z) over the last axis, p and q as log-probs."""
  p, q = (special.log_softmax(np.float64(x), axis=-1) for x in (p, q))
  kept = q + np.log(a)
  kept -= special.logsumexp(kept, axis=-1, keepdims=True)
  return np.sum(np.exp(p) * (p - kept), axis=-1)


def test_a_larger_threshold_and_no_other_rule_is_closer_to_the_target():
  """1,000 pairs of all distances; v2, Theorem 3.4."""
  rng = np.random.default_rng(2)
  scale = 10 ** rng.uniform(-2, 0.7, (1000, 1))
  p, q = (log_probs(rng, 1000, 8, scale=scale) for _ in range(2))
  # From a threshold that accepts all to one at which none is certain.
  lam = np.float32(np.exp(np.linspace(
      (p - q).min(-1) - 0.1, (p - q).max(-1) + 0.1, 12, axis=-1)))
  a = np.float64(acceptance(p[:, None], q[:, None], lam=lam[:, :, None]))
  kl = divergence(p[:, None], q[:, None], a)  # [1000, 12]
  # The mean of log a and log Z have the acceptance's relative error, and so
  # has the other side. The scale of p is that of lam.
  atol = 4 * error(p - q, np.log(lam), axis=-1)
  assert (np.diff(kl) <= atol[:, None]).all()
  assert (kl <= divergence(p, q, 1.0)[:, None] + atol[:, None]).all()
  assert (np.abs(kl[:, 0] - divergence(p, q, 1.0)) <= atol).all()
  assert (kl[:, -1] <= atol).all()

  # Any rule, and mixtures with the best one, scaled to the same rate.
  some = np.arange(1000), rng.integers(1, 11, 1000)
  behaviour, best = special.softmax(np.float64(q), axis=-1), a[some]
  rate = np.sum(behaviour * best, axis=-1, keepdims=True)
  for share in np.repeat([0, 0.5, 0.9, 0.99], 50):
    rule = rng.random((1000, 8)) ** rng.choice([0.2, 1, 5], (1000, 1))
    mean = np.sum(behaviour * rule, axis=-1, keepdims=True)
    rule = np.where(mean > rate, rule * rate / mean,
                    1 - (1 - rule) * (1 - rate) / (1 - mean))
    rule = share * best + (1 - share) * rule
    # The rate is the best one's to its error, and d KL / d log Z <= 1.
    assert (divergence(p, q, rule) >= kl[some] - atol).all()


@pytest.mark.parametrize('lam', LAMS)
@pytest.mark.parametrize('target, clipped', CASES)
def test_weights_are_unbiased(target, clipped, lam):
  """The mean of mask * weight * f is Z E[f], under p_ref or p_new."""
  new, ref, behaviour, tokens, f = world()
  p = new if target == 'p_new' else ref
  z = normalizer(p, behaviour, lam=lam)
  a = np.float64(acceptance(p, behaviour, lam=lam))
  weight = np.float64(weights(
      *(x[None] for x in (new, ref, behaviour)), np.full((1, 8), z),
      np.ones((1, 8), bool), lam=lam, target=target, clipped=clipped).weight[0])
  want = obrs_rule(p, behaviour, lam)[1] * (
      f @ np.exp(np.float64(ref if clipped else p)))
  q = np.exp(np.float64(behaviour))
  # Acceptance, Z, which is a sum, and both factors have errors of exps.
  rtol = 4 * error(new, ref, behaviour, np.log(lam)) + rounding(8)
  terms = q * a * weight * f
  assert (np.abs(terms.sum(-1) - want) <= rtol * np.abs(terms).sum(-1)).all()

  tokens = tokens[:200_000]
  mask = np.asarray(accept_mask(jax.random.key(3), np.float32(a)[tokens]))
  value = (weight * f)[:, tokens]
  sampled, expected = mask * value, a[tokens] * value
  assert_mean(np.stack([sampled, expected]), want)
  assert (expected.var(axis=-1) < sampled.var(axis=-1)).all()


@pytest.mark.parametrize('c1', [1.0, 1.5, 3.0, 10.0])
def test_expected_mask_is_damped_truncated_importance_sampling(c1):
  rng = np.random.default_rng(4)
  ref, behaviour = log_probs(rng, 2, 5, 25, scale=2.0)
  z = normalizer(ref, behaviour, lam=1.0)
  ratio = np.exp(np.float64(ref) - behaviour)
  z = np.broadcast_to(z[:, None], ref.shape)
  assert (z * ratio > c1).any() and (ratio < 1).any()
  got = acceptance(ref, behaviour, lam=1.0) * weights(
      ref, ref, behaviour, z, np.ones(ref.shape, bool), lam=1.0, c1=c1,
      target='p_ref').weight
  np.testing.assert_allclose(
      got, np.minimum(z * ratio, c1),
      rtol=2 * error(ref, behaviour, np.log(z)))


def topk_twin(ids_b, q, ids_t, p, lam, p_at_b, q_at_t):
  """Sums over the union of two sets of tokens, with dicts."""
  q, p = dict(zip(ids_b, np.exp(q))), dict(zip(ids_t, np.exp(p)))
  if p_at_b is not None:
    p.update(zip(ids_b, np.exp(p_at_b)))
  if q_at_t is not None:
    q.update(zip(ids_t, np.exp(q_at_t)))
  return sum(min(q.get(x, 0), p.get(x, 0) / lam) for x in {*ids_b, *ids_t})


@pytest.mark.parametrize('k, m', [(1, 3), (4, 4), (6, 2), (10, 10)])
def test_normalizer_over_two_sets(k, m):
  """Against dicts; over all 10 tokens it is exact."""
  rng = np.random.default_rng(k)
  shape, size = (3, 20), 10
  p, q = np.float64(log_probs(rng, 2, *shape, size, scale=1.5))
  ids_b, ids_t = (
      rng.permuted(np.broadcast_to(np.arange(size), p.shape), axis=-1)[..., :n]
      for n in (k, m))
  (p_at_b, q_at_b), (p_at_t, q_at_t) = (
      [np.take_along_axis(x, ids, -1) for x in (p, q)]
      for ids in (ids_b, ids_t))
  for lam in LAMS:
    exact = normalizer(p, q, lam=lam)
    rtol = error(p, q, np.log(lam)) + rounding(size)
    np.testing.assert_allclose(exact, obrs_rule(p, q, lam)[1], rtol=rtol)
    for given_b in (p_at_b, None):
      for given_t in (q_at_t, None):
        got = normalizer_topk(
            ids_b, q_at_b, ids_t, p_at_t, lam=lam, logp_t_at_b=given_b,
            logp_b_at_t=given_t)
        want = [
            topk_twin(ids_b[i], q_at_b[i], ids_t[i], p_at_t[i], lam,
                      *(x if x is None else x[i] for x in (given_b, given_t)))
            for i in np.ndindex(shape)]
        np.testing.assert_allclose(got, np.reshape(want, shape), rtol=rtol)
        assert (got <= exact * (1 + rtol)).all()
        if k == m == size:
          np.testing.assert_allclose(got, exact, rtol=rtol)


@pytest.mark.parametrize('sampled', [False, True])
@pytest.mark.parametrize('level', [1 / 16, 1.0])
def test_calibration(sampled, level):
  """The calibrated normaliser has the mean acceptance; it is not clamped."""
  rng = np.random.default_rng(5)
  shape = (6, 9)
  # Sums of multiples of 2^-12 are exact: only the division is rounded.
  a = np.float32(rng.integers(100, 156, shape) / 256)
  z = np.float32(level * rng.integers(192, 256, shape) / 256)
  if sampled:
    a = rng.random(shape) < a
  where = rng.random(shape) < 0.7
  rubbish = np.where(where, np.float32(z), np.nan)
  # Compiled, a product with the mask would be a choice too.
  kappa = obrs.calibration(rubbish, a, where, previous=2.5)
  assert kappa.shape == () and (kappa > 6 if level < 1 else kappa < 0.9)
  want = a[where].mean(dtype=np.float64)
  assert abs(np.float64(kappa) * z[where].mean(dtype=np.float64) - want) < 1e-6
  assert calibration(z, np.where(where, np.float32(a), np.nan), where) == kappa
  assert calibration(*(x[::-1] for x in (z, a, where))) == kappa


def test_calibration_without_an_estimate_is_the_previous_one():
  ones, yes = np.ones((2, 3), np.float32), np.ones((2, 3), bool)
  for z, accepted, where in (
      (ones, ones, ~yes), (ones, 0 * ones, yes), (ones, ~yes, yes),
      (0 * ones, ones, yes), (ones * np.nan, ones * np.nan, ~yes)):
    assert calibration(z, accepted, where, previous=2.5) == 2.5
    assert calibration(z, accepted, where) == 1.0


@pytest.mark.parametrize('target, clipped', CASES)
def test_weights_are_constants(target, clipped):
  """Even if a correction stops no gradient and masked positions hold NaN."""
  rng = np.random.default_rng(7)
  mask = rng.random((5, 25)) < 0.7
  def total(new, ref, behaviour, z):
    return jnp.sum(weights(
        new, ref, behaviour, z, mask, lam=0.8, target=target,
        clipped=clipped, correction=lambda log_x, _: jnp.exp(
            jnp.minimum(log_x, importance.MAX_LOG_RATIO))).weight)

  for fill in (0.0, np.nan):
    args = [np.where(mask, x, np.float32(fill))
            for x in (*log_probs(rng, 3, 5, 25), rng.random((5, 25)))]
    for slope in jax.jit(jax.grad(total, argnums=(0, 1, 2, 3)))(*args):
      np.testing.assert_array_equal(slope, np.zeros(mask.shape))


@pytest.mark.parametrize('target, clipped', CASES)
@pytest.mark.parametrize('name', LIMITS)
def test_weights_equal_the_twin(name, target, clipped):
  rng = np.random.default_rng(8)
  mask = rng.random((5, 25)) < 0.8
  ref = -np.float32(rng.exponential(2.0, mask.shape))
  new, behaviour = np.float32(ref + rng.normal(size=(2, *mask.shape)))
  behaviour[1::2, :3] -= 25  # ratios beyond e^20
  ref[1, 3:5] += 25
  mask[1] = True
  z = np.float32(rng.uniform(0.2, 1, mask.shape))
  top = np.exp(importance.MAX_LOG_RATIO)
  correction = name and functools.partial(
      getattr(importance, name), **LIMITS[name])
  for lam, c1, c2 in zip(
      [*LAMS, *LAMS], [np.inf, 1.5, 3, 2, 0.7, np.inf],
      [np.inf, 1.1, 1.28, 1.5, np.inf, 1.28]):
    p = new if target == 'p_new' else ref
    x = np.minimum(
        z * np.maximum(np.float64(lam), np.exp(np.float64(p) - behaviour)), top)
    assert (x == top)[mask].any()
    first = np.minimum(x, c1) if name is None else reference.correction(
        name, np.log(x), mask, **LIMITS[name])
    second = np.ones(mask.shape)
    if target == 'p_new' and clipped:
      second = np.minimum(np.exp(np.float64(ref) - new), top)
      c2 -= 0.2  # once below 1, the factor of masked positions
    want = np.where(mask, first * np.minimum(second, c2), 1)

    hidden = [np.where(mask, y, np.float32(np.nan))
              for y in (new, ref, behaviour, z)]
    got = weights(
        *hidden, mask, lam=lam, c1=c1, c2=c2, target=target, clipped=clipped,
        correction=correction)
    rtol = 2 * error(new, ref, behaviour, np.log(z), np.log(lam))
    # A flag and IcePop are steps at the limits.
    ends = np.array([*LIMITS[name].values()] if name else [c1])
    clear = (np.abs(x[..., None] - ends) > rtol * x[..., None]).all(-1)
    clear &= np.abs(second - c2) > rtol * second
    assert clear.mean() > 0.95
    np.testing.assert_allclose(got.weight[clear], want[clear], rtol=rtol)
    changed = ~np.isclose(first, x, rtol=rtol, atol=0)
    for flag, wanted in ((got.at_c1, changed), (got.at_c2, second > c2)):
      np.testing.assert_array_equal(flag[clear], (mask & wanted)[clear])
    np.testing.assert_array_equal(got.weight[~mask], 1)
    assert not np.any((got.at_c1 | got.at_c2)[~mask])


@pytest.mark.parametrize('target', ['p_old', '', None])
def test_an_unknown_target_is_refused(target):
  x = np.zeros((1, 2), np.float32)
  with pytest.raises(ValueError, match=r'^target=[^.]* p_new, p_ref\.$'):
    obrs.weights(
        obrs.Logprobs(x, x, x), x + 1, x == 0, lam=1.0, target=target)
