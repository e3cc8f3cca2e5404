"""Tests of the objectives and their aggregation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import policy_losses
from tests.helpers.methods import hyperparameters
from tests.helpers.tolerance import FUNCTION, rounding
from tests.reference import policy_losses as twin

BUDGET = 11


def _batch(per_token):
  rng = np.random.default_rng(2)
  b, t = 5, 6
  old = -rng.exponential(1.5, (b, t))
  new = old + 0.4 * rng.standard_normal((b, t))
  length = np.array([6, 1, 4, 0, 5])
  mask = np.arange(t) < length[:, None]
  mask[0, 2] = False  # a hole, as rejected tokens leave
  advantages = rng.standard_normal((b, t) if per_token else b)
  return new, old, advantages, mask


def given(objective, low, high, dual=None):
  """Returns the bounds that an objective uses; others keep their defaults."""
  bounds = dict(clip_low=low, clip_high=high, dual_clip=dual)
  return {name: value for name, value in bounds.items()
          if name in hyperparameters(policy_losses.OBJECTIVES[objective])}


def test_hyperparameters_are_the_keyword_arguments():
  got = {name: hyperparameters(f)
         for name, f in policy_losses.OBJECTIVES.items()}
  assert got == dict(
      clip=('clip_low', 'clip_high', 'dual_clip'),
      gspo=('clip_low', 'clip_high', 'dual_clip'),
      cispo=('clip_low', 'clip_high'), no_clip=(),
      sapo=('tau_positive', 'tau_negative'),
      vespo=('k_positive', 'lambda_positive', 'k_negative', 'lambda_negative'),
      gmpo=('log_clip_low', 'log_clip_high'), dppo=('divergence',))


@pytest.mark.parametrize('aggregation', policy_losses.AGGREGATIONS)
@pytest.mark.parametrize('objective', policy_losses.OBJECTIVES)
@pytest.mark.parametrize('dual', [None, 1.3])
def test_loss_and_gradient_equal_the_twin(objective, aggregation, dual):
  for per_token in (False, True):
    new, old, advantages, mask = _batch(per_token)
    where = np.array([1, 1, 1, 1, 0], bool)

    def ours(new):
      loss = policy_losses.OBJECTIVES[objective](
          new, np.float32(old), np.float32(advantages), mask,
          **given(objective, 0.1, 0.2, dual)).loss
      return policy_losses.aggregate(
          loss, mask, aggregation, where=where, budget=BUDGET)

    def theirs(x, of=np.asarray):
      loss = of(twin.token_loss(
          objective, x, new, old, advantages, mask, 0.1, 0.2, dual))
      return twin.aggregate(loss, mask, aggregation, where, BUDGET)

    loss, grad = jax.value_and_grad(ours)(jnp.float32(new))
    # A sum over the tokens; each has 12 operations, an exp, and the roundings
    # of two log-probs, which shift the logarithm of its ratio.
    counts = new.size, 12, FUNCTION, 2 * np.abs(new).max()
    np.testing.assert_allclose(
        loss, theirs(new), rtol=0,
        atol=rounding(*counts, magnitude=theirs(new, np.abs)))
    want = twin.gradient(theirs, new)
    np.testing.assert_allclose(
        grad, want, rtol=0,
        atol=rounding(*counts, magnitude=np.abs(want).max()))


def test_clip_golden():
  # Ratios 1/2, 1, 2 at both signs of the advantage, bounds .8 and 1.28. The
  # surrogate min(r A, clip(r) A) is clipped only where A pushes r outwards.
  ratio = np.log(np.float32([[0.5, 1, 2], [0.5, 1, 2]]))
  old, mask = np.zeros((2, 3), np.float32), np.ones((2, 3))
  advantages = np.float32([1, -1])
  options = dict(clip_low=0.2, clip_high=0.28)
  close = functools.partial(  # A log, an exp and 4 operations.
      np.testing.assert_allclose, rtol=rounding(2 * FUNCTION, 4))
  out = policy_losses.clip(ratio, old, advantages, mask, **options)
  close(out.loss, [[-0.5, -1, -1.28], [0.8, 1, 2]])
  np.testing.assert_array_equal(
      out.clipped_high, [[False, False, True], [False] * 3])
  np.testing.assert_array_equal(
      out.clipped_low, [[False] * 3, [True, False, False]])
  close(out.ratio, np.exp(ratio))
  grad = jax.grad(lambda new: jnp.sum(policy_losses.clip(
      new, old, advantages, mask, **options).loss))(jnp.asarray(ratio))
  close(grad, [[-0.5, -1, 0], [0, 1, 2]])
  # Dual clip: at A = -1 the loss stops at 1.5.
  out = policy_losses.clip(
      ratio, old, advantages, mask, dual_clip=1.5, **options)
  close(out.loss[1], [0.8, 1, 1.5])


def test_gmpo_golden():
  """Logarithms of the ratios -1, 0 and 1, at both signs of the advantage."""
  new, old = np.float32([[-1, 0, 1]] * 2), np.zeros((2, 3), np.float32)
  advantages = np.float32([2, -2])
  out = policy_losses.gmpo(new, old, advantages, np.ones((2, 3)))
  # (-1 + 0 + .4) / 3 = -.2 and (-.4 + 0 + 1) / 3 = .2.
  s = np.exp([[-.2] * 3, [.2] * 3])
  close = functools.partial(
      np.testing.assert_allclose, rtol=rounding(FUNCTION, 6))
  close(out.ratio, s)
  close(out.loss, s * [[-2], [2]])
  np.testing.assert_array_equal(
      out.clipped_high, [[False, False, True], [False] * 3])
  np.testing.assert_array_equal(
      out.clipped_low, [[False] * 3, [True, False, False]])
  grad = jax.grad(lambda x: jnp.sum(policy_losses.gmpo(
      x, old, advantages, np.ones((2, 3))).loss))(jnp.asarray(new))
  # Each of the three losses of a row has a third of a token's gradient.
  close(grad, s * [[-2, -2, 0], [0, 2, 2]])


def test_dppo_golden():
  """A rare token may become four times as likely, a likely one only 1.2."""
  old = np.log(np.float32([[.01, .7, .5, .9]] * 2))
  new = np.log(np.float32([[.04, .95, .2, .9]] * 2))
  advantages, mask = np.float32([1, -1]), np.ones((2, 4))
  out = policy_losses.dppo(new, old, advantages, mask)
  ratio = np.array([4, 95 / 70, .4, 1])
  close = functools.partial(  # Three logarithms or exp, of numbers up to 5.
      np.testing.assert_allclose,
      rtol=rounding(3 * FUNCTION, 6, magnitude=5), atol=0)
  # The second has moved by .25, the third by -.3.
  close(out.loss, [-ratio * [1, 0, 1, 1], ratio * [1, 1, 0, 1]])
  np.testing.assert_array_equal(out.clipped_high[0], [0, 1, 0, 0])
  np.testing.assert_array_equal(out.clipped_low[1], [0, 0, 1, 0])
  assert not np.any(out.clipped_high[1]) and not np.any(out.clipped_low[0])
  everything = policy_losses.dppo(new, old, advantages, mask, divergence=.31)
  close(everything.loss, ratio * [[-1], [1]])


def test_vespo_golden():
  """w = 2 with k = 2, lambda = 3, and w = 1/2 with k = 3, lambda = 2."""
  old = np.log(np.float32([[.1, .2]] * 2))
  new = np.log(np.float32([[.2, .2], [.1, .1]]))
  out = policy_losses.vespo(new, old, np.float32([1, -1]), np.ones((2, 2)))
  phi = np.array([[4 * np.exp(-3)], [np.exp(1) / 8]])
  close = functools.partial(
      np.testing.assert_allclose, rtol=rounding(6 * FUNCTION, magnitude=5))
  close(out.ratio, [[2, 2], [.5, .5]])
  close(out.loss, phi * [[-1], [1]] * new)


def test_on_policy_every_objective_is_the_policy_gradient():
  # At new = old the gradient of each is -A weights; GSPO spreads a row's over
  # its tokens, to which every token of the row contributes.
  _, old, advantages, mask = _batch(per_token=False)
  for objective, f in policy_losses.OBJECTIVES.items():
    def loss(new):
      out = f(new, old, advantages, mask, **given(objective, 0.0, 0.0))
      return policy_losses.aggregate(out.loss, mask, 'sequence_mean')
    grad = jax.grad(loss)(jnp.float32(old))
    weights = policy_losses.token_weights(mask, 'sequence_mean')
    # GSPO's is a sum over the row; 8 operations, the exp of 0 being exact.
    np.testing.assert_allclose(
        grad, -advantages[:, None] * weights, rtol=rounding(mask.shape[1], 8),
        err_msg=objective)


def test_weights_golden():
  mask = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]])
  weights = lambda *args, **options: np.asarray(
      policy_losses.token_weights(mask, *args, **options))
  close = functools.partial(  # Counts are exact: a product and a division.
      np.testing.assert_allclose, rtol=rounding(2))
  # Four rows, one of them without tokens: it counts among the rows.
  close(weights('sequence_mean'), mask * [[1 / 8], [1 / 4], [0], [1 / 12]])
  close(weights('token_mean'), mask / 6)
  close(weights('constant', budget=10), mask / 40)
  # Without the last row three are left, with 3 tokens.
  where = np.array([True, True, True, False])
  kept = mask * where[:, None]
  close(weights('sequence_mean', where=where),
        kept * [[1 / 6], [1 / 3], [0], [0]])
  close(weights('token_mean', where=where), kept / 3)
  close(weights('constant', where=where, budget=10), kept / 30)


@pytest.mark.parametrize('aggregation', policy_losses.AGGREGATIONS)
def test_a_batch_without_tokens_has_loss_zero(aggregation):
  loss = policy_losses.aggregate(
      np.full((2, 3), np.nan), np.zeros((2, 3)), aggregation,
      where=np.zeros(2, bool), budget=10)
  assert loss == 0


def test_bad_aggregations_are_named():
  mask = np.ones((1, 2))
  with pytest.raises(ValueError, match="'mean' is not known.*token_mean"):
    policy_losses.token_weights(mask, 'mean')
  with pytest.raises(ValueError, match='budget='):
    policy_losses.token_weights(mask, 'constant')


def test_wrong_shapes_are_refused():
  x = np.zeros((2, 3), np.float32)
  with pytest.raises(AssertionError):
    policy_losses.clip(
        x, x, np.zeros(3), np.ones((2, 3)), clip_low=0.2, clip_high=0.2)
