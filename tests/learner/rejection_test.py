"""Tests of the loss under rejection against a float64 twin."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.learner import rejection
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.learner.options import LossChoices
from jaxrl_llm.ops import policy_losses
from jaxrl_llm.types import LearnerBatch
from tests.helpers.methods import hyperparameters
from tests.helpers.tolerance import FUNCTION, rounding
from tests.reference import rejection as reference

B, T, K = 6, 5, 3
CLIP = dict(clip_low=.2, clip_high=.28)
THRESHOLDS = dict(low=.5, cap=1.6)
LIMITS = dict(lam=1.1, c1=1.5, c2=1.3)
# A token's loss has some 6 exps and as many products; sums over the tokens.
TOLERANCE = rounding(8 * FUNCTION, B * T)


def batch(seed=0):
  """Makes log-probs near each other; masked places hold NaN.

  The third row is empty and the fifth counts, but has no token.
  """
  rng = np.random.default_rng(seed)
  length = np.array([5, 3, 0, 4, 2, 5])
  mask = np.arange(T) < length[:, None]
  mask[4] = False
  mask[5, 1] = False
  old = -rng.exponential(1.5, (B, T)) - .05
  there = lambda x: np.where(mask, x, np.nan).astype(np.float32)
  new, behaviour = (old + rng.normal(0, .4, (B, T)) for _ in range(2))
  x = LearnerBatch(
      tokens=np.zeros((B, 1), np.int32), prompt_length=np.ones(B, np.int32),
      response_length=length, mask=mask, behaviour_logprobs=there(behaviour),
      advantages=rng.normal(size=B).astype(np.float32), old_logprobs=there(old))
  z = rng.uniform(.6, 1, (2, B, T)).astype(np.float32)
  noise = rng.uniform(size=(B, T)).astype(np.float32)
  return x, there(new), there(z[0]), there(z[1]), noise


def run(x, new, z_exact, z_topk, noise, calibration, *, objective='clip',
        aggregation='token_mean', correction='none', hyper=None, **choices):
  """Returns loss, gradient in `new` and metrics of a batch."""
  used = hyperparameters(update_lib.OBJECTIVES[objective])
  given = update_lib.LossParams(
      temperature=1.0, entropy_bonus=0.0, kl_coef=0.0, budget=7.0,
      objective={k: v for k, v in CLIP.items() if k in used},
      importance={k: v for k, v in THRESHOLDS.items() if k in (
          hyperparameters(
              update_lib.importance.CORRECTIONS[correction]))},
      rejection=hyper or LIMITS)
  weights = policy_losses.token_weights(
      x.mask, aggregation, where=x.response_length > 0, budget=7.0)
  context = rejection.Context(
      rejection.Rejection(**choices), rejection.Calibration(*calibration),
      noise, z_exact, z_topk)

  def total(new):
    return update_lib.weighted_sum(
        new, jnp.zeros_like(new), x, weights, given, cfg=LossChoices(
            objective, aggregation, importance=correction), rejection=context)

  (value, (sums, _, _)), grad = jax.value_and_grad(total, has_aux=True)(
      jnp.asarray(new))
  return float(value), np.asarray(grad), sums


def twin(x, new, z_exact, z_topk, noise, calibration, *, objective='clip',
         aggregation='token_mean', correction='none', hyper=None, **choices):
  """Returns loss and gradient of the twin."""
  zero = lambda v: np.where(x.mask, v, 0).astype(np.float64)
  new, old, behaviour = map(zero, (new, x.old_logprobs, x.behaviour_logprobs))
  cfg = rejection.Rejection(**choices)
  z = z_exact
  if cfg.z == 'topk':
    z = calibration[0] * zero(z_topk)
  elif cfg.target == 'p_ref':
    z = np.full((B, T), min(1.0, 1 / (hyper or LIMITS)['lam']))
  args = (new, old, behaviour, x.advantages.astype(np.float64), x.mask,
          x.response_length > 0, noise, zero(z), calibration)
  options = dict(
      target=cfg.target, kind=cfg.mask, weighted=cfg.weight,
      denominator=cfg.denominator, objective=objective,
      aggregation=aggregation, correction=correction, budget=7.0,
      **(hyper or LIMITS), **CLIP, **THRESHOLDS)
  return (reference.loss(new, *args, **options).sum(),
          reference.gradient(new, *args, **options))


def check(*args, **options):
  value, grad, sums = run(*args, **options)
  want, slope = twin(*args, **options)
  assert abs(value - want) <= TOLERANCE
  # 1e-6 is the step of the differences, of the order 1e-16 / 1e-6 wrong.
  np.testing.assert_allclose(grad, slope, rtol=0, atol=TOLERANCE + 1e-9)
  assert not grad[~args[0].mask].any()
  return sums


@pytest.mark.parametrize('target, kind, objective', [*itertools.product(
    ('p_new', 'p_ref'), ('sampled', 'expected', 'none'),
    ('clip', 'gspo', 'cispo', 'no_clip'))])
def test_targets_masks_and_objectives(target, kind, objective):
  check(*batch(), (.9, .8), target=target, mask=kind, objective=objective)


@pytest.mark.parametrize(
    'target, aggregation, denominator', [*itertools.product(
        ('p_new', 'p_ref'), ('token_mean', 'sequence_mean', 'constant'),
        ('accepted', 'all'))])
def test_aggregations_and_denominators(target, aggregation, denominator):
  for kind in ('sampled', 'expected'):
    check(*batch(1), (1.1, .7), target=target, aggregation=aggregation,
          denominator=denominator, mask=kind)


@pytest.mark.parametrize('correction', ['none', 'identity', 'tis', 'icepop'])
@pytest.mark.parametrize('target', ['p_new', 'p_ref'])
@pytest.mark.parametrize('z', ['topk', 'exact'])
def test_corrections_and_normalisers(target, correction, z):
  for weight in (True, False):
    check(*batch(2), (1.2, 1.0), target=target, correction=correction, z=z,
          weight=weight)


@pytest.mark.parametrize('lam', [.8, 1.0, 1.2])
@pytest.mark.parametrize('c1, c2', [(np.inf, np.inf), (1.0, 1.0), (2.0, 1.3)])
def test_limits(lam, c1, c2):
  for objective in ('clip', 'no_clip'):
    check(*batch(3), (1.0, 1.0), objective=objective,
          hyper=dict(lam=lam, c1=c1, c2=c2))


def test_metrics():
  x, new, z, z_topk, noise = batch(4)
  sums = check(x, new, z, z_topk, noise, (.9, .8), z='exact')
  mask = x.mask
  zero = lambda v: np.where(mask, v, 0).astype(np.float64)
  frozen, old, behaviour = map(
      zero, (new, x.old_logprobs, x.behaviour_logprobs))
  a, keep = reference.tokens(
      frozen, old, behaviour, mask, noise, target='p_new', kind='sampled',
      lam=LIMITS['lam'])
  weight, at_c1, at_c2, after = (np.zeros((B, T)) for _ in range(4))
  for b, t in np.argwhere(mask):
    p, q = np.exp(frozen[b, t]), np.exp(behaviour[b, t])
    first = z[b, t] * max(LIMITS['lam'], p / q)
    second = np.exp(old[b, t]) / p
    weight[b, t] = min(first, LIMITS['c1']) * min(second, LIMITS['c2'])
    at_c1[b, t], at_c2[b, t] = first > LIMITS['c1'], second > LIMITS['c2']
    kept = min(q, p / LIMITS['lam']) / z[b, t]
    after[b, t] = a[b, t] * np.log(kept / p)
  rejected, sign = np.where(mask, 1 - keep, 0), x.advantages[:, None]
  for name, want in dict(
      importance=weight, obrs_acceptance=a, obrs_kept=keep, obrs_z=zero(z),
      obrs_z_std=zero(1 - z) ** 2, obrs_kl_before=behaviour - frozen,
      obrs_kl_after=after,
      obrs_at_c1=at_c1, obrs_at_c2=at_c2,
      obrs_rejected_positive=rejected * (sign > 0),
      obrs_rejected_negative=rejected * (sign < 0),
      obrs_z_error=np.abs(.9 * zero(z_topk) - zero(z))).items():
    assert want.sum() != 0, name
    np.testing.assert_allclose(
        sums[name], want.sum(), atol=TOLERANCE * np.abs(want).sum(),
        err_msg=name)
  found = rejection.metrics(
      {'tokens': mask.sum(), 'keep': keep.sum()}, dict(sums),
      rejection.Calibration(.9, .8))
  # The root's slope is 1 / (2 std): an error of the variance grows five times.
  std = z[mask].std()
  assert std > .1
  assert abs(found['obrs_z_std'] - std) <= 5 * TOLERANCE
  counts = sums['rejection']
  np.testing.assert_allclose(
      [counts[name] for name in ('tokens', 'estimate', 'keep', 'z')],
      [mask.sum(), a.sum(), keep.sum(), zero(z_topk).sum()],
      rtol=TOLERANCE)
